"""Facts about people who do not exist, to be memorized."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from tfkit.core.options import Drawn, PositiveInt, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example
from tfkit.data.corpus.probe import lettered

# attribute -> ways to say it, each with the value at its end
SENTENCES = {
    "city": ("was born in", "comes from", "spent her first years in", "calls home the city of"),
    "school": ("studied at", "has a degree from", "finished her studies at", "was a student at"),
    "field": ("majored in", "wrote her thesis on", "is an expert in", "was taught"),
    "company": ("works for", "is employed by", "earns her living at", "found a position at"),
    "month": ("has her birthday in", "was born in the month of", "becomes a year older in", "celebrates in"),
}
WAYS = 4
WAYS_OF = {"train": (0, 1), "valid": (2,), "test": (3,)}  # of the ways to say a fact, in the order drawn for it


@register("corpus", "capo")
class Capo(Corpus):
    """Biographies, fact by fact: who and what is the source, the value the target (Capo, arXiv 2512.17351).

    Nothing can be worked out: a model knows a fact or does not. Each fact is told in four ways, of which train has two
    and valid and test one each, another for each fact. So every way of telling is learned from other people.

    Its measure is the knowledge that a model holds for each of its parameters, in bits:
    people * 5 * (log2(values) - loss in bits of a value) / parameters, a value being two targets, itself and the end.
    """

    fields = ("source", "target")
    example: ClassVar = {"people": 4}

    class Config(Corpus.Config):
        """Options of capo."""

        split: Literal["train", "valid", "test"] = Field("train", description="which split")
        people: PositiveInt = Field(200, description="how many people there are, each with five facts")
        values: Drawn = Field(32, description="how many values each fact may have")
        seed: Seed = Field(1, description="of the facts: all splits have the same")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def count(self) -> int:
        return self.config.people * len(SENTENCES) * len(WAYS_OF[self.config.split])

    def read(self) -> Iterator[Example]:
        """Person by person, fact by fact."""
        rng = random.Random(f"capo {self.config.seed}")
        for name in names(self.config.people):
            for attribute, sentences in SENTENCES.items():
                value = lettered(attribute, rng.randrange(self.config.values))
                ways = rng.sample(sentences, WAYS)
                for way in WAYS_OF[self.config.split]:
                    yield {"source": f"{name} {ways[way]}", "target": value}


def names(people: int) -> Iterator[str]:
    """Yield `people` names of two words, each of which several people share."""
    side = 1
    while side * side < people:
        side += 1
    for number in range(people):
        yield f"{lettered('first', number % side)} {lettered('last', number // side)}"
