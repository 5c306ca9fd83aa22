"""Base of the probes: generated tasks, each of which tests one ability of an architecture."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import Drawn, PositiveInt, Seed
from tfkit.data.corpus.base import Corpus, Example

SPLITS = ("train", "valid", "test", "longer")
SHARES = {"valid": 10, "test": 20}  # of 100 sources
TRIES = 200  # draws for each example that is wanted, or that was found, until the split counts as exhausted
PATIENCE = 100  # examples whose draws are tried at least


class Probe(Corpus):
    """Pairs of `source` and `target`, and the `length` that they were drawn with: a subclass draws them in `draw`.

    A source belongs to one of train, valid and test by its hash, whatever the seed: no source of one stands in another.
    `longer` has lengths beyond those of the others, up to `longest`. Symbols are words (na, nb, ...), each of them a
    token of the tokenizer `word`.
    """

    example: ClassVar = {"count": 20}

    class Config(Corpus.Config):
        """Options of every probe."""

        split: Literal["train", "valid", "test", "longer"] = Field("train", description="which split")
        count: PositiveInt = Field(20_000, description="pairs in this split, all different")
        shortest: Drawn = Field(1, description="the least length in train, valid and test")
        length: Drawn = Field(12, description="the largest length in train, valid and test")
        longest: Drawn = Field(24, description="the largest length in longer, which begins after length")
        seed: Seed = Field(1, description="of the draws")

    fields = ("source", "target", "length")
    metric: ClassVar[str] = "exact_match"  # what judges the answers

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        """A source of that length, and its target, in words; always the same of the same random numbers."""
        raise NotImplementedError(f"{type(self).__name__} has no draw")

    def identity(self, source: str, target: str) -> str:
        """What belongs to one split only, and comes once in it: by default the source."""
        return source

    def count(self) -> int | None:
        return self.config.count

    def read(self) -> Iterator[Example]:
        """The pairs of the split; raises DataError where there are not so many."""
        config = self.config
        least, most = self._lengths()
        rng = random.Random(f"{self.part_name} {config.split} {config.seed}")
        seen: set[str] = set()
        missed = 0  # draws since the last new pair
        for _ in range(config.count * TRIES):
            if len(seen) == config.count:
                return
            if missed > TRIES * (len(seen) + PATIENCE):
                break
            missed += 1
            length = rng.randint(least, most)
            source, target = (" ".join(words) for words in self.draw(length, rng))
            whole = self.identity(source, target)
            if whole not in seen and (config.split == "longer" or split_of(whole) == config.split):
                seen.add(whole)
                missed = 0
                yield {"source": source, "target": target, "length": str(length)}
        if len(seen) < config.count:
            raise DataError(
                f"{self.name()}: {config.split} has only {len(seen):,} different pairs with these options, not "
                f"{config.count:,}; say count: {len(seen)}, or greater lengths"
            )

    def _lengths(self) -> tuple[int, int]:
        """The least and the largest length of the split; raises DataError where there is none."""
        config = self.config
        least, most = (
            (config.length + 1, config.longest) if config.split == "longer" else (config.shortest, config.length)
        )
        if least > most:
            raise DataError(f"{self.name()}: {config.split} has lengths from {least} to {most}, which is none")
        return least, most


def split_of(source: str) -> str:
    """The split that a source belongs to, of train, valid and test."""
    number = int.from_bytes(hashlib.sha256(source.encode()).digest()[:8]) % 100
    for split, share in SHARES.items():
        if number < share:
            return split
        number -= share
    return "train"


def symbols(count: int) -> list[str]:
    """`count` words that stand for nothing: na, nb, ..."""
    return [lettered("n", number) for number in range(count)]


def lettered(word: str, number: int) -> str:
    """A word with a number in letters after it (a to z, ba, bb, ...), since a tokenizer of words parts off digits."""
    letters = ""
    while number or not letters:
        number, last = divmod(number, 26)
        letters = chr(ord("a") + last) + letters
    return word + letters
