"""Word-level tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from pydantic import Field, model_validator
from tokenizers import models, trainers

from tfkit.core.options import PositiveInt, Vocabulary
from tfkit.core.registry import register
from tfkit.data.tokenizer.base import LearnedTokenizer, Tokenizer, some
from tfkit.data.tokenizer.special import check_room
from tfkit.data.tokenizer.words import mark_words


@register("tokenizer", "word")
class Word(LearnedTokenizer):
    """One token for each of the most frequent words, numbers and runs of punctuation, including the space before it."""

    class Config(LearnedTokenizer.Config):
        """Options of `word`."""

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
        config = self.config
        backend = tokenizers.Tokenizer(models.WordLevel(vocab={}, unk_token=self.special.unknown or ""))
        mark_words(backend, config.lowercase)
        trainer = trainers.WordLevelTrainer(
            vocab_size=config.vocab_size or 2**31 - 1,
            min_frequency=config.minimum_count,
            special_tokens=list(self.special.texts().values()),
            show_progress=False,
        )
        backend.train_from_iterator(some(texts), trainer)
        return self.finish(backend)
