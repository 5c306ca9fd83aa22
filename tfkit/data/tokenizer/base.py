"""The fitted `Tokenizer`, the base class of trainable tokenizer parts, and tokens that begin a word.

Each space is replaced by the mark "▁" and attached to the following piece, and the text gets a leading mark: "Ein Mann,
der" becomes "▁Ein" "▁Mann" "," "▁der". Joining pieces and replacing marks restores punctuation, double spaces and line
breaks exactly; only a literal "▁" is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from tfkit.core import slots
from tfkit.core.errors import DataError, RunError, TfkitError, UsageError
from tfkit.core.facts import RecipeConfig
from tfkit.data.tokenizer.backend import (
    ROLES,
    TAG,
    SpecialTokens,
    infer_roles,
    panics_as_errors,
    read_backend,
    roles_in,
    token_bytes,
    with_roles,
)
from tfkit.storage.files import read_text, write_text


class Tokenizer:
    """Conversion between text and ids, with special tokens by role.

    Special tokens written in a text are encoded as plain text ("</s>" is four characters) unless `special=True`.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, special: Mapping[str, str], source: Tokenizer | None = None
    ) -> None:
        """Wrap a `tokenizers` object with its special tokens by role. Raise DataError for unknown tokens.

        `source` is the tokenizer for the encoder's texts, if the two sides have different ones.
        """
        vocabulary = backend.get_vocab(with_added_tokens=True)
        missing = [f"{role} {text!r}" for role, text in special.items() if text not in vocabulary]
        if missing:
            raise DataError(f"the tokenizer has no token for {', '.join(missing)}")
        self.special_ids: dict[str, int] = {role: vocabulary[special[role]] for role in ROLES if role in special}
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.gaps = frozenset(range(self.vocab_size)).difference(vocabulary.values())  # ids without a token
        self.tags = tuple(text for role, text in special.items() if role.startswith(TAG))
        self.backend = with_roles(backend, special)
        self.backend.encode_special_tokens = True
        self._source = source

    @property
    def source(self) -> Tokenizer:
        """Tokenizer of the encoder's texts; the tokenizer itself if both sides share it."""
        return self if self._source is None else self._source

    def beside(self, source: Tokenizer) -> Tokenizer:
        """Return a copy for target texts, with `source` as the tokenizer for source texts."""
        return Tokenizer(self.backend, {role: self.token(id_) for role, id_ in self.special_ids.items()}, source)

    def with_tags(self, tags: Sequence[str]) -> Tokenizer:
        """Return a copy that encodes each tag as one token, anywhere in a text. Raise DataError for special tokens."""
        backend = tokenizers.Tokenizer.from_str(self.to_json())
        backend.add_tokens([tokenizers.AddedToken(tag, rstrip=True, normalized=False) for tag in tags])
        roles = roles_in(json.loads(self.to_json())["post_processor"]) or {}
        roles = {role: text for role, text in roles.items() if not role.startswith(TAG)}
        if taken := set(tags).intersection(roles.values()):
            raise DataError(f"the tag {min(taken)} is a special token of the tokenizer; use another name")
        return Tokenizer(backend, roles | {f"{TAG}{number}": tag for number, tag in enumerate(tags)}, self._source)

    @property
    def sizes(self) -> int | tuple[int, int]:
        """Vocabulary size, or (source, target) sizes for two tokenizers."""
        return self.vocab_size if self._source is None else (self._source.vocab_size, self.vocab_size)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Return the ids of `text` without adding special tokens; `special` recognizes special tokens in the text."""
        return self.encode_batch([text], special)[0]

    def encode_batch(self, texts: Sequence[str], special: bool = False, template: bool = False) -> list[list[int]]:
        """Encode many texts in parallel. Raise DataError if a text cannot be encoded.

        `template` adds the special tokens of a third-party file's template ([CLS] ... [SEP]).
        """
        return [list(one.ids) for one in self._encoded(texts, special, template)]

    def encode_with_places(
        self, texts: Sequence[str], special: bool = False
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the ids of each text and their character spans (start, end). No special tokens are added.

        `special` recognizes special tokens in the texts. Raise DataError if a text cannot be encoded.
        """
        found = zip(texts, self._encoded(texts, special, places=True), strict=True)
        return [(list(one.ids), self._places(text, special) or list(one.offsets)) for text, one in found]

    @panics_as_errors()
    def _encoded(
        self, texts: Sequence[str], special: bool, template: bool = False, places: bool = False
    ) -> list[tokenizers.Encoding]:
        backend = self._reads_special if special else self.backend
        encode = backend.encode_batch if places else backend.encode_batch_fast
        read = list(texts)
        try:
            if self.kmers:
                read = [" ".join(text[begin:end] for begin, end in self._places(text, special)) for text in texts]
            return encode(read, add_special_tokens=template)
        except TypeError:
            raise _not_text(texts) from None
        except DataError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise DataError(self._first_unknown(read) or str(error)) from error

    @cached_property
    def kmers(self) -> tuple[int, int] | None:
        """Size and stride of overlapping k-mers, which are cut here; tokenizer.json reads them separated by spaces."""
        found = KMERS.search(repr(self.backend.pre_tokenizer))
        return None if found is None else (int(found[1]), int(found[2]))

    def _places(self, text: str, special: bool) -> list[tuple[int, int]]:
        """Return the spans of overlapping k-mers, tags and, if recognized, special tokens; [] without k-mers."""
        if self.kmers is None:
            return []
        places, begin, added = list[tuple[int, int]](), 0, self.backend.get_added_tokens_decoder().values()
        names = "|".join(re.escape(one.content) + r"\s*" * one.rstrip for one in added if special or not one.special)
        for number, part in enumerate(re.split(f"({names})", text) if names else [text]):
            if part and part.split() != [part] and number % 2 == 0:
                raise DataError(f"{part!r:.60} contains white space; k-mers are cut from letters without spaces")
            spans = [(0, len(part))] if number % 2 else kmers_in(len(part), *self.kmers)
            places += [(begin + first, begin + last) for first, last in spans]
            begin += len(part)
        return places

    @cached_property
    def _reads_special(self) -> tokenizers.Tokenizer:
        """A second backend that recognizes special tokens, since threads share the settings of a backend."""
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = False
        return backend

    def unknown(self, text: str) -> list[str]:
        """Return the distinct pieces of a text that are encoded as the unknown token."""
        return self.unknown_pieces(text, *self.encode_with_places([text])[0])

    def unknown_pieces(self, text: str, ids: Iterable[int], places: Iterable[tuple[int, int]]) -> list[str]:
        """Return the distinct pieces of an encoded text that are unknown.

        Surrounding spaces are stripped, unless a piece consists of spaces.
        """
        role = self.special_ids.get("unknown")
        pieces = [text[begin:end] for id_, (begin, end) in zip(ids, places, strict=True) if id_ == role]
        return list(dict.fromkeys(piece.strip() or piece for piece in pieces))

    def _first_unknown(self, texts: Sequence[str]) -> str:
        """Return the error message for the first piece that cannot be encoded; "" if all pieces are known."""
        known = self.backend.get_vocab(with_added_tokens=False)
        ids = len(known) if all(token == str(id_) for token, id_ in known.items()) else 0
        for text in texts:
            normal = self.backend.normalizer.normalize_str(text) if self.backend.normalizer else text
            cutter = self.backend.pre_tokenizer
            for piece, _ in cutter.pre_tokenize_str(normal) if cutter else ():
                if piece not in known:
                    numbers = f"an id; ids are whole numbers from 0 to {ids - 1}, as in 25 18 50"
                    return f"{piece!r} is not {numbers if ids else 'in the vocabulary, which has no unknown token'}"
        return ""

    @panics_as_errors()
    def decode(self, ids: Sequence[int]) -> str:
        """Decode `ids`, skipping special tokens and ids without a token."""
        numbers = [int(id_) for id_ in ids]
        if numbers and min(numbers) < 0:
            raise UsageError(f"ids must not be negative, got {min(numbers)}")
        return str(self.backend.decode(numbers, skip_special_tokens=True))

    def token(self, id_: int) -> str:
        """Return the token with this id. Raise UsageError if there is none."""
        token = self.backend.id_to_token(id_) if id_ >= 0 else None
        if token is None:
            raise UsageError(f"no token has id {id_}; ids are 0 to {self.vocab_size - 1}")
        return str(token)

    def readable_token(self, id_: int) -> str:
        """Return the token with this id for display: byte-level tokens are decoded."""
        token = self.token(id_)
        return token_bytes(token).decode("utf-8", "replace") if self._byte_level else token

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel(" in repr(self.backend.decoder)

    def id(self, token: str) -> int:
        """Return the id of a token. Raise UsageError if it is not in the vocabulary."""
        number = self.backend.token_to_id(token)
        if number is None:
            raise UsageError(f"{token!r} is not in the vocabulary of {self.vocab_size} tokens")
        return int(number)

    def __contains__(self, token: str) -> bool:
        return self.backend.token_to_id(token) is not None

    def to_json(self) -> str:
        """Serialize as tokenizer.json."""
        return str(self.backend.to_str(pretty=True))

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json atomically. Raise DataError if writing fails."""
        try:
            write_text(Path(path), self.to_json())
        except RunError as error:
            raise DataError(f"the tokenizer: {error}") from None

    @classmethod
    def empty(cls) -> Tokenizer:
        """Return a tokenizer without tokens, for recipes that use no texts."""
        return cls(tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token="")), {})

    @classmethod
    def load(cls, path: str | Path, special: Mapping[str, str] | None = None) -> Tokenizer:
        """Read a tokenizer.json written by tfkit or a third party.

        Roles are taken from `special`, else from the file, else from common names. Raise DataError naming the file.
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
        """Parse the text of a tokenizer.json. Raise DataError if it is invalid."""
        backend = read_backend(text)
        if special is None:
            written = roles_in(json.loads(backend.to_str())["post_processor"])
            special = infer_roles(backend) if written is None else written
        return cls(backend, special)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle as JSON, for data loader workers."""
        if self._source is not None:
            return Tokenizer.beside, (Tokenizer.from_json(self.to_json()), self._source)
        return Tokenizer.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.backend.model).__name__}, {self.vocab_size} tokens, {self.special_ids})"


# comment in the pre-tokenizer of overlapping k-mers: their size and stride
KMERS = re.compile(r"\(\?#kmer ([1-9]\d{0,2}) ([1-9]\d{0,2})\)")


def kmers_in(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Return the spans of the k-mers of `length` letters; the last one is shorter if letters are left over."""
    starts = range(0, max(length - size + stride, min(length, 1)), stride)
    return [(start, min(start + size, length)) for start in starts]


def _not_text(texts: Sequence[Any]) -> TfkitError:
    """Return the error for values that the library rejects as strings."""
    for text in texts:
        if not isinstance(text, str):
            return UsageError(f"a tokenizer encodes strings, got {type(text).__name__} ({text!r})")
    return DataError("the text contains a lone surrogate (half of a character) and is not valid Unicode")


class TokenizerPart(slots.TokenizerFacts):
    """Base of tokenizer parts; `fit` trains on texts and returns a `Tokenizer`."""

    class Config(slots.TokenizerFacts.Config, RecipeConfig):
        """Options of all tokenizers."""

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Train deterministically on `texts`. Raise DataError if there are none."""
        raise NotImplementedError


class LearnedTokenizer(TokenizerPart):
    """Base of tokenizers that learn a vocabulary."""

    class Config(TokenizerPart.Config):
        special_tokens: SpecialTokens = Field(
            default_factory=SpecialTokens, description="special tokens by role; none: no token for the role"
        )

        def has(self, role: str) -> bool:
            return role in self.special_tokens.texts()

        def id_of(self, role: str) -> int | None:
            return list(self.special_tokens.texts()).index(role) if self.has(role) else None

    config: Config

    def __init__(self, config: Config) -> None:
        self.config, self.special = config, config.special_tokens

    def finish(self, backend: tokenizers.Tokenizer) -> Tokenizer:
        """Add the special tokens to a trained backend and wrap it."""
        backend.add_special_tokens(list(self.special.texts().values()))
        return Tokenizer(backend, self.special.texts())


def some(texts: Iterable[str]) -> Iterator[str]:
    """Yield `texts`. Raise DataError at the end if all of them were empty."""
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise DataError("the tokenizer has no text to learn from")


def within(bound: int, backend: tokenizers.Tokenizer, needed: str) -> None:
    """Raise DataError if the trained vocabulary exceeds `bound`."""
    size = backend.get_vocab_size(with_added_tokens=True)
    if size > bound:
        raise DataError(f"vocab_size: {bound} is too small; {needed} need {size}")


MARK = "▁"
# runs of letters, digits or other characters, each with the mark before it; other whitespace one character at a time
_PIECES = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\p{L}\p{M}\p{N}▁\s]+|▁|\s"


def mark_words(backend: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Set the normalizer, pre-tokenizer and decoder that implement the scheme of this module."""
    lower: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    backend.normalizer = normalizers.Sequence([*lower, normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


Flags = np.ndarray[Any, np.dtype[np.bool_]]


def continuations(tokenizer: Tokenizer) -> Flags:
    """Return the mask [vocab_size] of word-internal tokens, which start with `##`, or lack a leading `▁` or `Ġ`.

    In vocabularies without such marks (characters), letters and digits are word-internal, because the space before
    them starts the word; all other characters start a word. Tokens joined by spaces are words.
    """
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    marks = [mark for mark in ("▁", "Ġ") if any(token.startswith(mark) for token in vocabulary)]
    inside = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    if tokenizer.backend.decoder is None:
        return inside
    pieces = any(token.startswith("##") and len(token) > 2 for token in vocabulary)
    for token, id_ in vocabulary.items():
        if pieces:
            inside[id_] = token.startswith("##")
        else:
            inside[id_] = token[:1].isalnum() and not any(token.startswith(mark) for mark in marks)
    inside[list(tokenizer.special_ids.values())] = False
    return inside
