"""Subword tokenizers: byte-pair encoding, unigram and WordPiece."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from pydantic import Field, model_validator
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveInt, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.backend import check_room, default_unknown, unknown_problem
from tfkit.data.tokenizer.base import MARK, LearnedTokenizer, Tokenizer, mark_words, some, within


@register("tokenizer", "bpe")
class Bpe(LearnedTokenizer):
    """Byte-pair encoding of characters (Sennrich 2016, arXiv 1508.07909) or bytes (GPT-2, Radford 2019).

    Bytes can represent any text, so `byte_level: true` needs no unknown token; characters need one.
    """

    class Config(LearnedTokenizer.Config):
        vocab_size: Vocabulary = Field(description="maximum number of tokens, including special ones")
        byte_level: bool = Field(
            False, description="merge bytes instead of characters, so that no text is unknown (GPT-2)"
        )
        lowercase: bool = Field(False, description="convert texts to lower case")
        minimum_count: PositiveInt = Field(2, description="minimum number of occurrences of a pair to merge")

        @model_validator(mode="before")
        @classmethod
        def _bytes_know_everything(cls, data: object) -> object:
            return default_unknown(data) if isinstance(data, Mapping) and data.get("byte_level") is True else data

        @model_validator(mode="after")
        def _unknown_fits(self) -> Bpe.Config:
            if self.byte_level == (self.special_tokens.unknown is not None):
                raise ValueError(unknown_problem(self.special_tokens, "byte_level"))
            check_room(self.vocab_size, self.special_tokens, others=256 if self.byte_level else 1)
            return self

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the merges from `texts`. Raise DataError if the characters alone exceed the vocabulary size."""
        config = self.config
        backend = tokenizers.Tokenizer(models.BPE(unk_token=self.special.unknown))
        if config.byte_level:
            if config.lowercase:
                backend.normalizer = normalizers.Lowercase()
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = decoders.ByteLevel()
        else:
            mark_words(backend, config.lowercase)
        trainer = trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            min_frequency=config.minimum_count,
            special_tokens=list(self.special.texts().values()),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if config.byte_level else [],
            show_progress=False,
        )
        backend.train_from_iterator(some(texts), trainer)
        within(config.vocab_size, backend, "the distinct characters and the special tokens")
        return self.finish(backend)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # byte tokens, named as the library requires
DIGITS, NOISE = 6, 1e-9  # decimals of stored log-probabilities, and their maximum variation before rounding
STEP = 1e-4  # difference in log-probability between consecutive characters in the library's ranking


@register("tokenizer", "unigram")
class Unigram(LearnedTokenizer):
    """The most probable segmentation under a unigram model of pieces fitted with EM (Kudo 2018, arXiv 1804.10959)."""

    class Config(LearnedTokenizer.Config):
        vocab_size: Vocabulary = Field(description="maximum number of tokens, including special tokens and bytes")
        byte_fallback: bool = Field(
            False, description="encode unseen characters as bytes, so that no text is unknown (adds 256 tokens)"
        )
        lowercase: bool = Field(False, description="convert texts to lower case")
        longest: PositiveInt = Field(16, le=256, description="maximum number of characters of a piece")

        @model_validator(mode="before")
        @classmethod
        def _bytes_know_everything(cls, data: object) -> object:
            return default_unknown(data) if isinstance(data, Mapping) and data.get("byte_fallback") is True else data

        @model_validator(mode="after")
        def _unknown_fits(self) -> Unigram.Config:
            if self.byte_fallback == (self.special_tokens.unknown is not None):
                raise ValueError(unknown_problem(self.special_tokens, "byte_fallback"))
            check_room(self.vocab_size, self.special_tokens, others=257 if self.byte_fallback else 1)
            return self

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn pieces and their probabilities from `texts`. Raise DataError if the characters exceed the size."""
        config = self.config
        first = [*self.special.texts().values(), *(BYTES if config.byte_fallback else ())]
        unknown = self.special.unknown or BYTES[0]  # the library requires one, but bytes cover everything
        pieces = [*((token, 0.0) for token in first), *self._pieces(texts, first, unknown)]
        backend = tokenizers.Tokenizer(models.Unigram(pieces, first.index(unknown), config.byte_fallback))
        mark_words(backend, config.lowercase)
        if config.byte_fallback:
            marks = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            backend.decoder = decoders.Sequence(marks)
        return self.finish(backend)

    def _pieces(self, texts: Iterable[str], first: list[str], unknown: str) -> list[tuple[str, float]]:
        """Train the pieces, which follow the tokens in `first`."""
        backend = tokenizers.Tokenizer(models.Unigram())
        mark_words(backend, self.config.lowercase)
        trainer = trainers.UnigramTrainer(
            vocab_size=self.config.vocab_size,
            max_piece_length=self.config.longest,
            special_tokens=first,
            unk_token=unknown,
            show_progress=False,
        )
        try:
            backend.train_from_iterator(some(texts), trainer)
        except DataError:
            raise
        except Exception as error:  # the library raises plain Exception
            text = f"vocab_size: {self.config.vocab_size} is too small for the distinct characters and the other tokens"
            raise DataError(f"{text} ({error})") from None
        vocabulary = json.loads(backend.to_str())["model"]["vocab"]
        return _settled(vocabulary[len(first) :])


def _settled(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sort by log-probability, then alphabetically, so that the same texts produce identical files.

    The library's trainer ranks the remaining single characters in hash order, which varies between runs: they get the
    minimum log-probability plus 0, STEP, 2 STEP, ... Here they all get the minimum.
    """
    least = min(score for _, score in pieces)
    room = STEP * sum(len(piece) == 1 for piece, _ in pieces)

    def score_of(piece: str, score: float) -> float:
        above = score - least
        is_ranked = len(piece) == 1 and above < room and abs(above - STEP * round(above / STEP)) < NOISE
        return round(least if is_ranked else score, DIGITS)

    return sorted(((piece, score_of(piece, score)) for piece, score in pieces), key=lambda one: (-one[1], one[0]))


_PREFIX = "##"
# private code points that stand for word-initial and word-internal characters during training
_FRONT, _INSIDE, _ROOM = 0xF0000, 0x100000, 0xFFFE


@register("tokenizer", "wordpiece")
class WordPiece(LearnedTokenizer):
    """WordPiece (Wu 2016, arXiv 1609.08144; as in BERT, arXiv 1810.04805): `##` marks a piece inside a word.

    Decoding inserts spaces between words, but not before punctuation, so it does not always restore the text exactly.
    """

    class Config(LearnedTokenizer.Config):
        vocab_size: Vocabulary = Field(description="maximum number of tokens, including special tokens")
        lowercase: bool = Field(False, description="convert texts to lower case and strip accents (BERT uncased)")
        minimum_count: PositiveInt = Field(2, description="minimum number of occurrences of a pair to merge")

        @model_validator(mode="after")
        def _has_unknown(self) -> WordPiece.Config:
            if self.special_tokens.unknown is None:
                raise ValueError("words without known pieces need an unknown token; set special_tokens.unknown")
            check_room(self.vocab_size, self.special_tokens)
            return self

    config: Config

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Learn the pieces of `texts`. Raise DataError if the characters alone exceed the vocabulary size."""
        config = self.config
        normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
        cutter = pre_tokenizers.BertPreTokenizer()
        pieces = self._pieces(_count(some(texts), normalizer, cutter))
        tokens = [*self.special.texts().values(), *pieces]
        backend = tokenizers.Tokenizer(
            models.WordPiece(
                vocab={token: index for index, token in enumerate(tokens)},
                unk_token=self.special.unknown or "",
                continuing_subword_prefix=_PREFIX,
                max_input_chars_per_word=100,
            )
        )
        within(config.vocab_size, backend, "the distinct characters and the special tokens")
        backend.normalizer, backend.pre_tokenizer = normalizer, cutter
        backend.decoder = decoders.WordPiece(prefix=_PREFIX, cleanup=True)
        return self.finish(backend)

    def _pieces(self, counts: Counter[str]) -> list[str]:
        """Train the pieces. Return them in the order in which they were found.

        The library's own trainer numbers word-internal pieces in hash order, which varies between runs
        (huggingface/tokenizers 1794). Its BPE trainer sorts the alphabet and is deterministic. Word-initial and
        word-internal characters are therefore mapped to distinct code points, merged with BPE, and mapped back.
        """
        characters = sorted({character for word in counts for character in word})
        if len(characters) > _ROOM:
            raise DataError(f"{len(characters)} distinct characters; wordpiece supports at most {_ROOM}")
        front = {character: chr(_FRONT + index) for index, character in enumerate(characters)}
        inside = {character: chr(_INSIDE + index) for index, character in enumerate(characters)}
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            vocab_size=self.config.vocab_size - len(self.special.texts()),
            min_frequency=self.config.minimum_count,
            initial_alphabet=sorted(front.values()),  # so that every single character is in the vocabulary
            show_progress=False,
        )
        written = (front[word[0]] + "".join(inside[character] for character in word[1:]) for word in counts)
        backend.train_from_iterator(_repeated(written, counts.values()), trainer)
        pieces = sorted(backend.get_vocab().items(), key=lambda item: item[1])
        read = {chr(_FRONT + index): character for index, character in enumerate(characters)}
        read |= {chr(_INSIDE + index): character for index, character in enumerate(characters)}
        return [
            (_PREFIX if ord(token[0]) >= _INSIDE else "") + "".join(read[character] for character in token)
            for token, _ in pieces
        ]


def _count(
    texts: Iterable[str], normalizer: normalizers.Normalizer, cutter: pre_tokenizers.PreTokenizer
) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text)))
    return counts


def _repeated(words: Iterable[str], counts: Iterable[int]) -> Iterator[str]:
    """Yield each word as often as it was counted, in lines of at most 1000 words."""
    for word, count in zip(words, counts, strict=True):
        whole, rest = divmod(count, 1000)
        for _ in range(whole):
            yield f"{word} " * 1000
        if rest:
            yield f"{word} " * rest
