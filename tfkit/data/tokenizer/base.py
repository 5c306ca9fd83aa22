"""The fitted `Tokenizer`, and the base class of the parts that fit one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from pydantic import Field

from tfkit.core import slots
from tfkit.core.errors import DataError, RunError, TfkitError, UsageError
from tfkit.core.files import read_text, write_text
from tfkit.data.tokenizer.backend import panics_told, read_backend
from tfkit.data.tokenizer.byte_level import token_bytes
from tfkit.data.tokenizer.special import ROLES, SpecialTokens, infer_roles, roles_in, with_roles


class Tokenizer:
    """Text to ids and back, with the roles of its special tokens.

    Special tokens are never read from a text: "</s>" in a text is four characters, unless `special=True` is given.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, special: Mapping[str, str], source: Tokenizer | None = None
    ) -> None:
        """Take a `tokenizers` object and the text of each special token by role; raises DataError for no token.

        `source` reads what this one writes the translation of, where the two differ.
        """
        vocabulary = backend.get_vocab(with_added_tokens=True)
        missing = [f"{role} {text!r}" for role, text in special.items() if text not in vocabulary]
        if missing:
            raise DataError(f"the tokenizer has no token for {', '.join(missing)}")
        self.special_ids: dict[str, int] = {role: vocabulary[special[role]] for role in ROLES if role in special}
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.gaps = frozenset(range(self.vocab_size)).difference(vocabulary.values())  # ids that no token has
        self.backend = with_roles(backend, special)
        self.backend.encode_special_tokens = True
        self._source = source

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of what an encoder reads; itself, where there is one vocabulary."""
        return self if self._source is None else self._source

    def beside(self, source: Tokenizer) -> Tokenizer:
        """The tokenizer of targets whose sources another one reads."""
        return Tokenizer(self.backend, {role: self.token(id_) for role, id_ in self.special_ids.items()}, source)

    @property
    def sizes(self) -> int | tuple[int, int]:
        """The size of the vocabulary; of two, those of source and target."""
        return self.vocab_size if self._source is None else (self._source.vocab_size, self.vocab_size)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of `text`, no special token added; with `special` those written in the text are read as such."""
        return self.encode_batch([text], special)[0]

    @panics_told()
    def encode_batch(self, texts: Sequence[str], special: bool = False, template: bool = False) -> list[list[int]]:
        """`encode` for many texts at once, in parallel; raises DataError for a text that has no ids here.

        With `template` the special tokens are added that a file from elsewhere puts around a text ([CLS] ... [SEP]).
        """
        backend = self._reads_special if special else self.backend
        try:
            encoded = backend.encode_batch_fast(list(texts), add_special_tokens=template)
        except TypeError:
            raise _not_text(texts) from None
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"{self._first_unknown(texts)}: {error}") from error
        return [list(one.ids) for one in encoded]

    @panics_told()
    def encode_with_places(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of each text, no special token among them, and which characters each stands for: begin and end.

        Raises DataError for a text that has no ids here.
        """
        try:
            encoded = self.backend.encode_batch(list(texts), add_special_tokens=False)
        except TypeError:
            raise _not_text(texts) from None
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"{self._first_unknown(texts)}: {error}") from error
        return [(list(one.ids), list(one.offsets)) for one in encoded]

    @cached_property
    def _reads_special(self) -> tokenizers.Tokenizer:
        """A second backend, which reads special tokens in a text: threads share the settings of a backend."""
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = False
        return backend

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that become the unknown token, each once; nothing where the vocabulary knows all.

        Spaces around a piece are left out, unless it is nothing but spaces.
        """
        ((ids, places),) = self.encode_with_places([text])
        role = self.special_ids.get("unknown")
        pieces = [text[begin:end] for id_, (begin, end) in zip(ids, places, strict=True) if id_ == role]
        return list(dict.fromkeys(piece.strip() or piece for piece in pieces))

    def _first_unknown(self, texts: Sequence[str]) -> str:
        """The message about a text that a vocabulary without an unknown token cannot write."""
        for text in texts:
            normal = self.backend.normalizer.normalize_str(text) if self.backend.normalizer else text
            cutter = self.backend.pre_tokenizer
            for piece, _ in cutter.pre_tokenize_str(normal) if cutter else ():
                if piece not in self:
                    return f"{piece!r} is not in the vocabulary, which has no unknown token"
        return "the text cannot be encoded"

    @panics_told()
    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens; an id that no token has stands for nothing."""
        numbers = [int(id_) for id_ in ids]
        if numbers and min(numbers) < 0:
            raise UsageError(f"ids are not negative, got {min(numbers)}")
        return str(self.backend.decode(numbers, skip_special_tokens=True))

    def token(self, id_: int) -> str:
        """The token with that id; raises UsageError when there is none."""
        token = self.backend.id_to_token(id_) if id_ >= 0 else None
        if token is None:
            raise UsageError(f"no token has id {id_}; the ids go from 0 to {self.vocab_size - 1}")
        return str(token)

    def readable_token(self, id_: int) -> str:
        """The token with that id as people read it: of a byte-level vocabulary the text of its bytes."""
        token = self.token(id_)
        return token_bytes(token).decode("utf-8", "replace") if self._byte_level else token

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel(" in repr(self.backend.decoder)

    def id(self, token: str) -> int:
        """The id of that token; raises UsageError when there is none."""
        found = self.backend.token_to_id(token)
        if found is None:
            raise UsageError(f"{token!r} is no token of this vocabulary of {self.vocab_size}")
        return int(found)

    def __contains__(self, token: str) -> bool:
        """Whether that is one of the tokens."""
        return self.backend.token_to_id(token) is not None

    def to_json(self) -> str:
        """The text of tokenizer.json."""
        return str(self.backend.to_str(pretty=True))

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json, whole or not at all; raises DataError naming the file."""
        try:
            write_text(Path(path), self.to_json())
        except RunError as error:
            raise DataError(f"the tokenizer: {error}") from None

    @classmethod
    def empty(cls) -> Tokenizer:
        """The tokenizer of a recipe without texts: it has no token."""
        return cls(tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token="")), {})

    @classmethod
    def load(cls, path: str | Path, special: Mapping[str, str] | None = None) -> Tokenizer:
        """Read a tokenizer.json, ours or another's.

        Roles come from `special` if given, else from the file, else from common names.
        Raises DataError naming the file.
        """
        try:
            text = read_text(path)
        except RunError as error:
            raise DataError(f"the tokenizer {error}") from None
        try:
            return cls.from_json(text, special)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    @classmethod
    def from_json(cls, text: str, special: Mapping[str, str] | None = None) -> Tokenizer:
        """`load` from the text of a file; raises DataError."""
        backend = read_backend(text)
        if special is None:
            written = roles_in(json.loads(backend.to_str())["post_processor"])
            special = infer_roles(backend) if written is None else written
        return cls(backend, special)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle as the text of the file, for the workers that load data."""
        if self._source is not None:
            return Tokenizer.beside, (Tokenizer.from_json(self.to_json()), self._source)
        return Tokenizer.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.backend.model).__name__}, {self.vocab_size} tokens, {self.special_ids})"


def _not_text(texts: Sequence[Any]) -> TfkitError:
    """The message about texts that the library does not take for strings."""
    for text in texts:
        if not isinstance(text, str):
            return UsageError(f"a tokenizer encodes strings, got {type(text).__name__} ({text!r})")
    return DataError("half of a character (a lone surrogate) stands in the text, which is no Unicode text")


class TokenizerPart(slots.TokenizerFacts):
    """Base of the tokenizers: `fit` learns from texts and gives the `Tokenizer` that everything uses."""

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """A tokenizer for `texts`; the same texts give the same tokenizer. Raises DataError when there is no text."""
        raise NotImplementedError


class LearnedTokenizer(TokenizerPart):
    """Base of the tokenizers whose vocabulary comes from the texts."""

    class Config(TokenizerPart.Config):
        """Options of every tokenizer that learns its vocabulary."""

        special_tokens: SpecialTokens = Field(
            default_factory=SpecialTokens, description="texts of the special tokens by role; none leaves one out"
        )

        def has(self, role: str) -> bool:
            return role in self.special_tokens.texts()

        def id_of(self, role: str) -> int | None:
            return list(self.special_tokens.texts()).index(role) if self.has(role) else None

    def __init__(self, config: Config) -> None:
        self.special = config.special_tokens

    def finish(self, backend: tokenizers.Tokenizer) -> Tokenizer:
        """The `Tokenizer` around a trained backend, its special tokens entered."""
        backend.add_special_tokens(list(self.special.texts().values()))
        return Tokenizer(backend, self.special.texts())


def some(texts: Iterable[str]) -> Iterator[str]:
    """`texts` as they come; raises DataError at the end when not one of them held a character."""
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise DataError("a tokenizer learns from text, and there is none")


def within(bound: int, backend: tokenizers.Tokenizer, needed: str) -> None:
    """Raise DataError when the trainer had to go beyond the vocabulary asked for."""
    size = backend.get_vocab_size(with_added_tokens=True)
    if size > bound:
        raise DataError(f"vocab_size: {bound} is too small: {needed} alone need {size}")
