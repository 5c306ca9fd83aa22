"""my_part: a custom corpus, the source of examples."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import Field

import tfkit
from tfkit.data.corpus.base import Corpus, Example


@tfkit.register("corpus", "my_part")
class MyPart(Corpus):
    """Sums, such as "12+7=19", as many as are asked for; another seed gives others."""

    # The options of the part, as a recipe writes them: {type: my_part, count: 1000}. Add yours here; one that is a
    # file is of the type `RecipePath` of tfkit.core.options, so that it is looked for beside the recipe and --resume
    # notices when it has changed.
    class Config(Corpus.Config):
        count: int = Field(200, ge=1, description="number of examples")
        seed: int = Field(0, ge=0, description="seed of the random numbers; use different ones for valid and test")

    # What each example has: `text` for language models, `source` and `target` for pairs, `text` and `label`, ...
    fields = ("text",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def read(self) -> Iterator[Example]:
        # Change this: one mapping of texts an example.
        numbers = random.Random(self.config.seed)
        for _ in range(self.config.count):
            first, second = numbers.randrange(100), numbers.randrange(100)
            yield {"text": f"{first}+{second}={first + second}"}
