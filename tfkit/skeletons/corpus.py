"""my_part: a custom corpus, the source of examples."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import Field

import tfkit
from tfkit.data.corpus.base import Corpus, Example


@tfkit.register("corpus", "my_part")
class MyPart(Corpus):
    """Random sums such as "12+7=19"; the seed determines the examples."""

    # Options of the part, as written in a recipe: {type: my_part, count: 1000}. Add your own here. For a file, use the
    # type `RecipePath` of tfkit.core.options: its path is then relative to the recipe, and --resume detects changes.
    class Config(Corpus.Config):
        count: int = Field(200, ge=1, description="number of examples")
        seed: int = Field(0, ge=0, description="random seed; use different ones for valid and test")

    # The fields of each example: `text` for language models, `source` and `target` for pairs, `text` and `label`, ...
    fields = ("text",)

    config: Config

    def read(self) -> Iterator[Example]:
        # Change this: yield one mapping from fields to texts per example.
        numbers = random.Random(self.config.seed)
        for _ in range(self.config.count):
            first, second = numbers.randrange(100), numbers.randrange(100)
            yield {"text": f"{first}+{second}={first + second}"}
