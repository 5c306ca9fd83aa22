"""A unigram language model over word pieces, as in SentencePiece."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import tokenizers
from pydantic import Field, model_validator
from tokenizers import decoders, models, trainers

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveInt, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, some
from tfkit.data.tokenizer.special import check_room, default_unknown, unknown_problem
from tfkit.data.tokenizer.words import MARK, mark_words

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # byte tokens, named as the library requires
DIGITS, NOISE = (
    6,
    1e-9,
)  # decimals of stored log-probabilities, and their maximum variation before rounding
STEP = 1e-4  # difference in log-probability between consecutive characters in the library's ranking


@register("tokenizer", "unigram")
class Unigram(LearnedTokenizer):
    """The most probable segmentation under a unigram model of pieces fitted with EM (Kudo 2018, arXiv 1804.10959)."""

    class Config(LearnedTokenizer.Config):
        """Options of `unigram`."""

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
