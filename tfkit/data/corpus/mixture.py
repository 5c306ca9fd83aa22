"""Mixtures: several corpora combined in the ratio of their weights."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Annotated, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveFloat, PositiveInt, Seed, as_tuple
from tfkit.core.output import counted
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example
from tfkit.recipe.settings import sections


class WeightedCorpus(sections.Section):
    """A corpus of a mixture, with its weight."""

    corpus: sections.Corpus = Field(description="the corpus")
    weight: PositiveFloat = Field(1.0, description="share of the examples relative to the other weights")


def _at_least_two(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) < 2:
        raise ValueError("needs at least two corpora")
    return as_tuple(value)


class Drawn(NamedTuple):
    """An example of a mixture, with the index of its corpus and its number in that corpus (from 1)."""

    corpus: int
    number: int
    example: Example


@register("corpus", "mixture")
class Mixture(Corpus):
    """Several corpora combined in the ratio of their weights; each corpus keeps its own order.

    The order is stratified: among the first n examples, for any n, each corpus has its share up to rounding.
    """

    class Config(Corpus.Config):
        """The corpora, which must have the same fields, and the number of examples."""

        of: Annotated[tuple[WeightedCorpus, ...], BeforeValidator(_at_least_two)] = Field(
            min_length=2, description="the corpora, each with its weight: [{corpus: ..., weight: 2}, ...]"
        )
        size: PositiveInt | None = Field(None, description="number of examples; none: stop when a corpus is exhausted")
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
        """Return the option `size`."""
        return self.config.size

    def read(self) -> Iterator[Example]:
        """Yield the examples. Raise DataError if a corpus ends too early."""
        for drawn in self._drawn():
            yield drawn.example

    def _drawn(self) -> Iterator[Drawn]:
        streams = [_Stream(corpus, self.config.repeat) for corpus in self.corpora]
        for made, number in zip(count(), self._order(), strict=False):
            if made == self.config.size:
                return
            example = streams[number].next()
            if example is not None:
                yield Drawn(number, streams[number].read, example)
            elif self.config.size is None:
                return
            else:
                raise DataError(self._exhausted(number, streams[number].read, made))

    def _order(self) -> Iterator[int]:
        """Yield corpus indices endlessly, sorted by random times: in [k, k + 1) / weight for example k of a corpus."""

        def times(number: int, weight: float) -> Iterator[tuple[float, int]]:
            rng = random.Random(f"{self.config.seed} mixture {number}")
            return (((place + rng.random()) / weight, number) for place in count())

        shares = enumerate(self.config.of)
        return (number for _, number in heapq.merge(*(times(place, share.weight) for place, share in shares)))

    def _exhausted(self, number: int, read: int, made: int) -> str:
        size = self.config.size
        share = f"of[{number}] with {counted(read, 'example')} ends after {made:,} of {size:,} examples of the mixture"
        return f"{self.corpora[number].name()}: {share}; set repeat: true, or lower size or its weight"

    def where(self, number: int) -> str:
        """Return the location of the example in the corpus that it comes from."""
        drawn = next(islice(self._drawn(), number - 1, None), None)
        return super().where(number) if drawn is None else self.corpora[drawn.corpus].where(drawn.number)

    def name(self) -> str:
        """Return the names of the corpora."""
        return f"the mixture of {' and '.join(dict.fromkeys(corpus.name() for corpus in self.corpora))}"


class _Stream:
    """A stream of one corpus; `read` is the number of the last example."""

    def __init__(self, corpus: Corpus, repeat: bool) -> None:
        self.corpus, self.repeat = corpus, repeat
        self.examples, self.read = corpus.stream(), 0

    def next(self) -> Example | None:
        """Return the next example, restarting at the end if `repeat`; None at the end."""
        example = next(self.examples, None)
        if example is None and self.repeat and self.read:
            self.examples, self.read = self.corpus.stream(), 0
            example = next(self.examples, None)
        self.read += example is not None
        return example
