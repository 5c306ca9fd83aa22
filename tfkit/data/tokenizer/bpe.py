"""Byte-pair encoding: frequent pairs of symbols are merged repeatedly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tokenizers
from pydantic import Field, model_validator
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tfkit.core.options import PositiveInt, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, some, within
from tfkit.data.tokenizer.special import check_room, default_unknown, unknown_problem
from tfkit.data.tokenizer.words import mark_words


@register("tokenizer", "bpe")
class Bpe(LearnedTokenizer):
    """Byte-pair encoding of characters (Sennrich 2016, arXiv 1508.07909) or bytes (GPT-2, Radford 2019).

    Bytes can represent any text, so `byte_level: true` needs no unknown token; characters need one.
    """

    class Config(LearnedTokenizer.Config):
        """Options of `bpe`."""

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
            _cut_bytes(backend, config.lowercase)
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


def _cut_bytes(backend: tokenizers.Tokenizer, lowercase: bool) -> None:
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
