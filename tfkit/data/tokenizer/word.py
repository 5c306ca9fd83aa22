"""Tokenizers of characters, of words, and of a file, and special tokens around a text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import tokenizers
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from tfkit.core.options import PositiveInt, RecipePath, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.backend import ROLES, check_room, panics_as_errors
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, TokenizerPart, mark_words, some


@register("tokenizer", "character")
class Character(LearnedTokenizer):
    """One token for each character in the texts, in code point order after the special tokens.

    With `special_tokens: {unknown: none}`, encoding an unseen character raises an error.
    """

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        characters: set[str] = set()
        for text in some(texts):
            characters.update(text)
        tokens = [*self.special.texts().values(), *sorted(characters)]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(self._model(vocabulary))
        if self.special.unknown is None:
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return self.finish(backend)

    def _model(self, vocabulary: dict[str, int]) -> models.Model:
        """Return BPE without merges, ten times as fast as WordLevel, unless unknown characters must raise an error."""
        if self.special.unknown is None:
            return models.WordLevel(vocab=vocabulary, unk_token="")
        return models.BPE(vocab=vocabulary, merges=[], unk_token=self.special.unknown, fuse_unk=False)


@register("tokenizer", "word")
class Word(LearnedTokenizer):
    """One token for each of the most frequent words, numbers and runs of punctuation, including the space before it."""

    class Config(LearnedTokenizer.Config):
        vocab_size: Vocabulary | None = Field(
            None, description="maximum number of tokens, including special tokens; none: no limit"
        )
        minimum_count: PositiveInt = Field(1, description="minimum number of occurrences of a word")
        lowercase: bool = Field(False, description="convert texts to lower case")

        @model_validator(mode="after")
        def _has_room(self) -> Word.Config:
            check_room(self.vocab_size, self.special_tokens)
            return self

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the words of `texts`; ids are sorted by frequency, then alphabetically."""
        backend = tokenizers.Tokenizer(models.WordLevel(vocab={}, unk_token=self.special.unknown or ""))
        mark_words(backend, self.config.lowercase)
        return self.finish(self.count(backend, texts, list(self.special.texts().values())))

    def count(self, backend: tokenizers.Tokenizer, texts: Iterable[str], first: list[str]) -> tokenizers.Tokenizer:
        """Learn the vocabulary of `backend`, with the special tokens `first` before the others."""
        trainer = trainers.WordLevelTrainer(
            vocab_size=(self.config.vocab_size or 2**31 - 1) - len(self.special.texts()) + len(first),
            min_frequency=self.config.minimum_count,
            special_tokens=first,
            show_progress=False,
        )
        with panics_as_errors():
            backend.train_from_iterator(some(texts), trainer)
        return backend


class PretrainedTokens(BaseModel):
    """Special tokens of a pretrained tokenizer by role; roles may share a token (GPT-2's <|endoftext|>)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, title="PretrainedTokens")

    pad: str | None = Field(None, description="padding of shorter rows in a batch")
    start: str | None = Field(None, description="first token of a decoder's output")
    end: str | None = Field(None, description="end of a text")
    unknown: str | None = Field(None, description="replacement for unknown text")
    mask: str | None = Field(None, description="replacement for a masked token (masked_lm)")
    separator: str | None = Field(None, description="separator between two texts in a row")


@register("tokenizer", "file")
class File(TokenizerPart):
    """A tokenizer.json, used unchanged except that truncation and padding are disabled."""

    class Config(TokenizerPart.Config):
        path: RecipePath = Field(description="a tokenizer.json")
        special_tokens: PretrainedTokens | None = Field(
            None, description="special tokens by role; none: inferred from common names"
        )

        def described(self) -> str:
            return self.path

        def has(self, role: str) -> bool | None:
            known = self.special_tokens is not None and role in ROLES
            return getattr(self.special_tokens, role) is not None if known else None

    learns: ClassVar[bool] = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer in the file, ignoring `texts`. Raise DataError if the file is invalid."""
        names = self.config.special_tokens
        if names is None:
            return Tokenizer.load(self.config.path)
        special = {role: text for role in ROLES if (text := getattr(names, role)) is not None}
        return Tokenizer.load(self.config.path, special)


@dataclass(frozen=True)
class Frame:
    """Special tokens before a text, after it, and between two texts."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()

    @property
    def around(self) -> int:
        """Number of special tokens around a text."""
        return len(self.before) + len(self.after)

    @classmethod
    def of_roles(cls, special: Mapping[str, int]) -> Frame:
        """Return the frame of start, end and separator (default: end) tokens, skipping undefined roles."""
        start, end = special.get("start"), special.get("end")
        return cls(_as_tokens(start), _as_tokens(end), _as_tokens(special.get("separator", end)))

    @classmethod
    @panics_as_errors()
    def of_template(cls, tokenizer: Tokenizer) -> Frame:
        """Return the frame of the tokenizer's own template, which third-party files may have."""
        backend = tokenizer.backend
        # any text that is encoded as one token
        texts = chain("a", backend.get_vocab(with_added_tokens=False))
        text = next(text for text in texts if _is_read(backend, text))
        one, two = backend.encode(text), backend.encode(text, text)
        places, both = one.sequence_ids, two.sequence_ids
        after = len(places) - places[::-1].index(0)
        end, start = len(both) - both[::-1].index(0), both.index(1)
        return cls(tuple(one.ids[: places.index(0)]), tuple(one.ids[after:]), tuple(two.ids[end:start]))


def _is_read(backend: tokenizers.Tokenizer, text: str) -> bool:
    with contextlib.suppress(Exception):  # the library's error for a text that is not in the vocabulary
        return bool(backend.encode(text, add_special_tokens=False).ids)
    return False


def _as_tokens(id_: int | None) -> tuple[int, ...]:
    return () if id_ is None else (id_,)
