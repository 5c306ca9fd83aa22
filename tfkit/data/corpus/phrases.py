"""Generated English-German phrase pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tfkit.core.options import PositiveInt, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example


@register("corpus", "phrases")
class Phrases(Corpus):
    """Generated English-German phrase pairs; no file is needed, and splits share no pair.

    The sizes of all splits and the seed determine each split: use the same values in train, valid and test.
    """

    example: ClassVar = {"train": 60, "valid": 20, "test": 20}

    class Config(Corpus.Config):
        """The split, and the sizes and the seed, which must be the same for all splits."""

        split: Literal["train", "valid", "test"] = Field("train", description="the split")
        train: PositiveInt = Field(30000, description="number of pairs in train")
        valid: PositiveInt = Field(500, description="number of pairs in valid")
        test: PositiveInt = Field(1000, description="number of pairs in test")
        seed: Seed = Field(1, description="seed of the pairs and their splits")

        @model_validator(mode="after")
        def _distinct(self) -> Phrases.Config:
            from tfkit.data.phrases import MOST

            total = self.train + self.valid + self.test
            if total > MOST:
                raise ValueError(
                    f"train, valid and test add up to {total:,} pairs, but only {MOST:,} distinct pairs exist"
                )
            return self

    config: Config
    fields = ("source", "target")
    in_order = False

    def read(self) -> Iterator[Example]:
        """Yield the pairs of the split: English source, German target."""
        from tfkit.data import phrases

        config = self.config
        splits = phrases.split(config.train, config.valid, config.test, config.seed)
        for phrase in splits[("train", "valid", "test").index(config.split)]:
            yield {"source": phrase.english, "target": phrase.german}
