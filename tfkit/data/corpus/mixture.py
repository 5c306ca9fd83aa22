"""Mixtures: several corpora combined in the ratio of their weights."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveFloat, PositiveInt, Seed, as_tuple
from tfkit.core.output import counted
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example
from tfkit.recipe.settings import sections

PART = "corpus"  # further field of an example: the name of its corpus


class WeightedCorpus(sections.Section):
    """A corpus of a mixture, with its weight."""

    corpus: sections.Corpus = Field(description="the corpus")
    name: str | None = Field(None, description="its name as the field `corpus` of each example; none: its index")
    weight: PositiveFloat | None = Field(None, description="share relative to the other weights; none: 1")


def _at_least_two(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) < 2:
        raise ValueError("needs at least two corpora")
    return as_tuple(value)


@register("corpus", "mixture")
class Mixture(Corpus):
    """Several corpora combined in the ratio of their weights; each corpus keeps its own order.

    The order is stratified: among the first n examples, for any n, each corpus has its share up to rounding. With
    `temperature: T`, the weight of a corpus of n examples is n ** (1 / T) (Arivazhagan et al. 2019, arXiv 1907.05019).
    """

    class Config(Corpus.Config):
        """The corpora, which must have the same fields, and the number of examples."""

        of: Annotated[tuple[WeightedCorpus, ...], BeforeValidator(_at_least_two)] = Field(
            min_length=2, description="the corpora, each with its weight: [{corpus: ..., weight: 2}, ...]"
        )
        size: PositiveInt | None = Field(None, description="number of examples; none: stop when a corpus is exhausted")
        temperature: float | None = Field(
            None, ge=0.1, description="T: weights are size ** (1 / T); 1: proportional to sizes; large: equal shares"
        )
        repeat: bool = Field(
            False, description="restart exhausted corpora; false: raise an error if one ends before `size`"
        )
        seed: Seed = Field(0, description="seed of the mixing order")

        @model_validator(mode="after")
        def _ends(self) -> Mixture.Config:
            if self.repeat and self.size is None:
                raise ValueError("with repeat: true, a mixture is endless; set size to the number of examples")
            return self

        @model_validator(mode="after")
        def _one_weighting(self) -> Mixture.Config:
            for number, share in enumerate(self.of if self.temperature is not None else ()):
                the = f"temperature: {self.temperature:g} and of[{number}]"
                if share.weight is not None:
                    raise ValueError(f"{the}.weight: {share.weight:g} both set the shares; remove one of them")
                if not share.corpus.files_read() and share.corpus.build().count() is None:
                    text = f"of[{number}] ('{share.corpus.part.part_name}') is unknown; use weights instead"
                    raise ValueError(f"temperature: {self.temperature:g} depends on sizes, but the size of {text}")
            return self

        @model_validator(mode="after")
        def _same_fields(self) -> Mixture.Config:
            fields = [share.corpus.build().fields for share in self.of]
            for number, other in enumerate(fields):
                if set(other) != set(fields[0]):
                    first, these = ", ".join(fields[0]), ", ".join(other)
                    raise ValueError(f"of[{number}] has {these}; of[0] has {first}; use corpora with the same fields")
            return self

        def files_read(self) -> tuple[str, ...]:
            """Return the files of all corpora, or none if a corpus has none, so that the examples are hashed."""
            files = [share.corpus.files_read() for share in self.of]
            return tuple(dict.fromkeys(sum(files, ()))) if all(files) else ()

    example: ClassVar = {"of": [{"corpus": "copying", "weight": 2}, {"corpus": "reversal"}], "size": 12}
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.corpora: list[Corpus] = [share.corpus.build() for share in config.of]
        self.fields = self.corpora[0].fields
        self.in_order = all(corpus.in_order for corpus in self.corpora)

    def count(self) -> int | None:
        return self.config.size

    def read(self) -> Iterator[Example]:
        """Yield the examples. Raise DataError if a corpus ends too early."""
        for _, _, example in self._drawn():
            yield example

    def _drawn(self) -> Iterator[tuple[int, int, Example]]:
        """Yield the index of the corpus of each example, its number in that corpus (from 1), and the example."""
        for corpus in self.corpora:
            corpus.also = tuple(name for name in self.also if name != PART)
        streams = [_numbered(corpus, self.config.repeat) for corpus in self.corpora]
        read = [0] * len(streams)
        for made, index in zip(count(), self._order(), strict=False):
            if made == self.config.size:
                return
            if (found := next(streams[index], None)) is not None:
                read[index], example = found
                part = {PART: self.config.of[index].name or str(index)} if PART in self.also else {}
                yield index, read[index], example | part
            elif self.config.size is None:
                return
            else:
                ends = f"of[{index}] with {counted(read[index], 'example')} ends after {made:,} of {self.config.size:,}"
                text = f"{ends} examples of the mixture; set repeat: true, or lower size or its weight"
                raise DataError(f"{self.corpora[index].name()}: {text}")

    def _order(self) -> Iterator[int]:
        """Yield corpus indices endlessly, sorted by random times: in [k, k + 1) / weight for example k of a corpus."""

        def times(number: int, weight: float) -> Iterator[tuple[float, int]]:
            rng = random.Random(f"{self.config.seed} mixture {number}")
            return (((place + rng.random()) / weight, number) for place in count())

        return (number for _, number in heapq.merge(*(times(*share) for share in enumerate(self._weights()))))

    def _weights(self) -> list[float]:
        """Return the weight of each corpus. With `temperature`, corpora of unknown size are read to count them."""
        if self.config.temperature is None:
            return [share.weight or 1.0 for share in self.config.of]
        sizes = [max(1, sum(1 for _ in corpus.stream())) for corpus in self.corpora]
        return [(size / max(sizes)) ** (1 / self.config.temperature) for size in sizes]

    def place(self, number: int) -> str:
        drawn = next(islice(self._drawn(), number - 1, None), None)
        return super().place(number) if drawn is None else self.corpora[drawn[0]].where(drawn[1])

    def name(self) -> str:
        return f"the mixture of {' and '.join(dict.fromkeys(corpus.name() for corpus in self.corpora))}"


def _numbered(corpus: Corpus, repeat: bool) -> Iterator[tuple[int, Example]]:
    """Yield the examples of a corpus with their numbers (from 1), endlessly if `repeat`, unless there are none."""
    number, more = 0, True
    while more:
        for number, example in enumerate(corpus.stream(), start=1):
            yield number, example
        more = repeat and number > 0
