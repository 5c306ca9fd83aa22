"""Tokenizers of ids, symbols and k-mers. Special tokens follow the other ids, so that no symbol is read as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal

import tokenizers
from pydantic import AfterValidator, Field, model_validator
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tfkit.core.errors import DataError
from tfkit.core.options import NonNegativeInt, PositiveInt, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.backend import LONGEST_PATTERN, default_unknown
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, kmers_in, some
from tfkit.data.tokenizer.word import Word

# what separates ids: white space, commas between values, and brackets around all of them
_BETWEEN = r"\A\s*\[|\]\s*\z|(?<=[^\s,\[])\s*,\s*(?=[^\s,\]])|\s+"
_FREE = re.compile(r"(?<![^\s,\[])[0-9]{1,7}(?![^\s,\]])")
COUNTED = 2**20  # ids from here on need a vocab_size


@register("tokenizer", "ids")
class Ids(LearnedTokenizer):
    """Numbers as they are: the ids of `25 18 50`, or `[25, 18, 50]`, are 25, 18 and 50. Special tokens follow.

    Anything else, such as -1, 1.5, 007 or a number that is too large, raises an error unless there is an unknown token.
    """

    class Config(LearnedTokenizer.Config):
        vocab_size: Vocabulary | None = Field(
            None,
            description="number of ids, without added special tokens; none: the largest in the texts + 1, up to 2^20",
        )
        special_ids: dict[Literal["pad", "start", "end", "unknown", "mask", "separator"], NonNegativeInt] = Field(
            default_factory=dict, description="ids that replace special tokens, by role: {pad: 0, end: 1}"
        )

        @model_validator(mode="before")
        @classmethod
        def _refuses_others(cls, data: object) -> object:
            return default_unknown(data) if isinstance(data, Mapping) else data

        @property
        def vocabulary_bound(self) -> int | None:
            return self.vocab_size and self.vocab_size + len(self.special_tokens.texts().keys() - self.special_ids)

        def has(self, role: str) -> bool:
            return role in self.special_ids or super().has(role)

        def id_of(self, role: str) -> int | None:
            return next((id_ for name, id_ in self.special_ids.items() if name == role), None)

    config: Config
    samples: ClassVar = ("25 18 50", "7 0 12 7", "50 51 52")

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Count the ids, up to the largest one in `texts`, unless `vocab_size` is set."""
        special_ids, size = self.config.special_ids, self.config.vocab_size
        if size is None:
            found = (int(id_) for text in some(texts) for id_ in _FREE.findall(text))
            largest = max((id_ for id_ in found if id_ < COUNTED), default=-1)
            if largest < 0:
                raise DataError("the texts contain no ids, such as 25 18 50 or [25, 18, 50]")
            size = 1 + max([largest, *special_ids.values()])
            if size > COUNTED:
                raise DataError(f"special_ids: {size - 1:,} is not below {COUNTED:,}; set vocab_size to use it")
        for role, id_ in special_ids.items():
            if id_ >= size:
                raise DataError(f"special_ids.{role}: {id_} must be below vocab_size: {size}")
        roles: dict[str, str] = {**self.special.texts(), **{role: str(id_) for role, id_ in special_ids.items()}}
        vocabulary = {str(id_): id_ for id_ in range(size)}
        if "unknown" in roles:
            vocabulary.setdefault(roles["unknown"], size)
        backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=roles.get("unknown", "")))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(_BETWEEN), "removed")
        backend.add_special_tokens([AddedToken(text, single_word=text.isdecimal()) for text in roles.values()])
        return Tokenizer(backend, roles)


class SymbolTokenizer(Word):
    """Base of tokenizers that learn symbols, as `word` learns words."""

    class Config(Word.Config):
        def id_of(self, role: str) -> int | None:
            return None

    def learn(self, texts: Iterable[str], cutter: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
        """Learn the symbols that `cutter` finds. Raise DataError if there are none, or one is a special token."""
        unknown = [self.special.unknown] if self.special.unknown else []
        backend = tokenizers.Tokenizer(models.WordLevel(vocab={}, unk_token=self.special.unknown or ""))
        backend.pre_tokenizer = cutter
        if self.config.lowercase:
            backend.normalizer = normalizers.Lowercase()
        known = self.count(backend, texts, unknown).get_vocab()
        if len(known) == len(unknown):
            raise DataError("the texts contain no symbols")
        for role, text in self.special.texts().items():
            if text in known and text not in unknown:
                raise DataError(f"the texts contain {text!r}: remove it, or choose another special_tokens.{role}")
        return backend


def _compiled(pattern: str) -> str:
    try:
        Regex(pattern)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(max_length=LONGEST_PATTERN), AfterValidator(_compiled)]


def matches_of(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that keeps only the matches of a regular expression."""
    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)


@register("tokenizer", "symbols")
class Symbols(SymbolTokenizer):
    """One token for each symbol between white space (`NOTE_ON_60`), or for each match of a pattern.

    Decoding joins symbols with single spaces, and matches without.
    """

    class Config(SymbolTokenizer.Config):
        by: Pattern | None = Field(
            None, description="regular expression of a symbol, such as Cl|Br|[A-Za-z]; other text is unknown"
        )

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the symbols of `texts`; ids are sorted by frequency, then alphabetically."""
        by = self.config.by
        if by is None:
            return self.finish(self.learn(texts, pre_tokenizers.WhitespaceSplit()))
        backend = self.learn(texts, matches_of(by))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Split(Regex(by), "isolated"), decoders.Fuse()
        return self.finish(backend)


@register("tokenizer", "kmer")
class Kmer(SymbolTokenizer):
    """`size` letters per token, every `stride` letters; the last token is shorter if letters are left over.

    Decoding omits the letters that a token shares with the one before.
    """

    class Config(SymbolTokenizer.Config):
        size: PositiveInt = Field(le=100, description="number of letters of a token")
        stride: PositiveInt = Field(1, description="number of letters between the starts of tokens, at most size")

        @model_validator(mode="after")
        def _covers(self) -> Kmer.Config:
            if self.stride > self.size:
                raise ValueError(f"stride: {self.stride} would skip letters; use at most size: {self.size}")
            return self

    config: Config
    samples: ClassVar = ("atggcc", "ttagacc", "ac")

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the k-mers of `texts`; ids are sorted by frequency, then alphabetically."""
        size, stride = self.config.size, self.config.stride
        if size == stride:
            backend = self.learn(texts, pre_tokenizers.Split(Regex(rf"\S{{1,{size}}}"), "isolated"))
            backend.decoder = decoders.Fuse()
            return self.finish(backend)
        comment = pre_tokenizers.Split(Regex(f"(?#kmer {size} {stride})(?!)"), "isolated")  # matches nothing
        spaced = (" ".join(text[begin:end] for begin, end in kmers_in(len(text), size, stride)) for text in some(texts))
        backend = self.learn(spaced, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), comment]))
        shared = decoders.Replace(Regex(rf"\A .{{0,{size - stride}}}"), "")  # the first token has no space before it
        backend.decoder = decoders.Sequence([decoders.WordPiece(" ", cleanup=False), shared, decoders.Fuse()])
        return self.finish(backend)
