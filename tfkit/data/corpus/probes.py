"""Probes: small synthetic tasks with random symbols; each tests one ability."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar, Literal

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.errors import DataError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Drawn, PositiveInt, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example

SPLITS = ("train", "valid", "test", "longer")
SHARES = {"valid": 10, "test": 20}  # percentage of the sources in each split; the rest are in train
TRIES = 200  # maximum draws per example requested or found; a split without enough examples by then is exhausted
PATIENCE = 100  # added to the number of found examples, so that a search does not end too early


class Probe(Corpus):
    """Base of probes: pairs of `source` and `target`, which subclasses generate in `draw`.

    The hash of a source assigns it to train, valid or test, regardless of the seed, so the splits are disjoint.
    `longer` has lengths above those of the other splits, up to `longest`. Symbols are words (na, nb, ...) that the
    `word` tokenizer keeps as single tokens.
    """

    example: ClassVar = {"count": 20}

    class Config(Corpus.Config):
        split: Literal["train", "valid", "test", "longer"] = Field("train", description="the split")
        count: PositiveInt = Field(20_000, description="number of distinct pairs in the split")
        shortest: Drawn = Field(1, description="minimum length in train, valid and test")
        length: Drawn = Field(12, description="maximum length in train, valid and test")
        longest: Drawn = Field(24, description="maximum length in longer (must exceed length)")
        seed: Seed = Field(1, description="seed of the draws")

    config: Config
    fields = ("source", "target", "length")
    metric: ClassVar[str] = "exact_match"  # metric that scores the answers

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        """Draw the words of a source of this length and of its target, using only `rng` for randomness."""
        raise NotImplementedError(f"{type(self).__name__} does not implement draw")

    def identity(self, source: str, target: str) -> str:
        """Return the key whose hash decides the split and which is unique within it: by default the source."""
        return source

    def count(self) -> int | None:
        return self.config.count

    def read(self) -> Iterator[Example]:
        """Yield the pairs of the split. Raise DataError if fewer than `count` exist."""
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
                f"{self.name()}: {config.split} has only {len(seen):,} distinct pairs with these options, not "
                f"{config.count:,}; set count: {len(seen)}, or increase the lengths"
            )

    def _lengths(self) -> tuple[int, int]:
        """Return the range of lengths of the split. Raise DataError if it is empty."""
        config = self.config
        least, most = (
            (config.length + 1, config.longest) if config.split == "longer" else (config.shortest, config.length)
        )
        if least > most:
            raise DataError(f"{self.name()}: {config.split}: lengths {least} to {most} are an empty range")
        return least, most


def split_of(source: str) -> str:
    """Return the split of a source by its hash: train, valid or test."""
    number = int.from_bytes(hashlib.sha256(source.encode()).digest()[:8]) % 100
    for split, share in SHARES.items():
        if number < share:
            return split
        number -= share
    return "train"


def symbols(count: int) -> list[str]:
    """Return `count` meaningless words: na, nb, ..."""
    return [lettered("n", number) for number in range(count)]


def lettered(word: str, number: int) -> str:
    """Append a number spelled in letters (a to z, ba, bb, ...), since word tokenizers would split off digits."""
    letters = ""
    while number or not letters:
        number, last = divmod(number, 26)
        letters = chr(ord("a") + last) + letters
    return word + letters


@register("corpus", "copying")
class Copying(Probe):
    """Probe: target = source, a sequence of random symbols (Graves et al. 2014, arXiv 1410.5401)."""

    class Config(Probe.Config):
        symbols: Drawn = Field(20, description="number of symbols")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words = rng.choices(symbols(self.config.symbols), k=length)
        return words, words


@register("corpus", "reversal")
class Reversal(Copying):
    """Probe: target = the reversed source of random symbols (Grefenstette et al. 2015, arXiv 1506.02516)."""

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words, _ = super().draw(length, rng)
        return words, words[::-1]


@register("corpus", "sorting")
class Sorting(Probe):
    """Probe: target = the numbers of the source in ascending order (Graves et al. 2014, arXiv 1410.5401)."""

    class Config(Probe.Config):
        largest: Drawn = Field(50, description="the largest number (the smallest is 0)")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        numbers = [rng.randint(0, self.config.largest) for _ in range(length)]
        return list(map(str, numbers)), list(map(str, sorted(numbers)))


@register("corpus", "associative_recall")
class AssociativeRecall(Probe):
    """Probe: source = key-value pairs, then keys; target = keys with values (MQAR, Arora 2023, arXiv 2312.04927).

    The length is the number of pairs. Every key is queried once, in random order. The target repeats each key before
    its value, so that the symbol before a value identifies it.
    """

    class Config(Probe.Config):
        shortest: Drawn = Field(4, description="minimum number of pairs in train, valid and test")
        length: Drawn = Field(8, description="maximum number of pairs in train, valid and test")
        longest: Drawn = Field(16, description="maximum number of pairs in longer (must exceed length)")
        keys: Drawn = Field(32, description="number of distinct keys, and of distinct values")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        count = self.config.keys
        keys = rng.sample(range(count), min(length, count))
        values = {key: rng.randrange(count) for key in keys}
        pairs = [word for key in keys for word in (lettered("k", key), lettered("v", values[key]))]
        queries = rng.sample(keys, len(keys))
        answer = [word for key in queries for word in (lettered("k", key), lettered("v", values[key]))]
        return [*pairs, "?", *(lettered("k", key) for key in queries)], answer


@register("corpus", "induction")
class Induction(Probe):
    """Probe: source ... a b c ... a, target = b c, what followed the earlier a (Olsson et al. 2022, arXiv 2209.11895).

    The length is that of the sequence before the final query; the symbols in this sequence are distinct.
    """

    example: ClassVar = {"count": 20, "shortest": 3, "following": 2}

    class Config(Probe.Config):
        shortest: Drawn = Field(5, description="minimum length in train, valid and test")
        length: Drawn = Field(16, description="maximum length in train, valid and test")
        longest: Drawn = Field(32, description="maximum length in longer (must exceed length)")
        symbols: Drawn = Field(40, description="number of symbols")
        following: Drawn = Field(4, description="number of symbols in the target")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if self.split != "longer" and self.shortest <= self.following:
                text = f"following {self.following} needs sequences of at least {self.following + 1} symbols"
                yield Problem("shortest", text)
            most = self.longest if self.split == "longer" else self.length
            if most > self.symbols:
                yield Problem("symbols", f"are too few for a sequence of {most} distinct symbols")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        text = rng.sample(symbols(self.config.symbols), length)
        following = self.config.following
        place = rng.randrange(length - following)
        return [*text, text[place]], text[place + 1 : place + 1 + following]


@register("corpus", "parity")
class Parity(Probe):
    """Probe: target = the parity (even, odd) of the number of ones in the source (Hahn 2020, arXiv 1906.06755).

    With `running`, the target is the parity after each bit: a scratchpad with which a Transformer can solve the task
    (Anil et al. 2022, arXiv 2207.04901).
    """

    class Config(Probe.Config):
        count: PositiveInt = Field(10_000, description="number of distinct pairs in this split")
        length: Drawn = Field(16, description="maximum length in train, valid and test")
        longest: Drawn = Field(32, description="maximum length in longer (must exceed length)")
        running: bool = Field(False, description="output the parity after each bit instead of only at the end")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        bits = [rng.randint(0, 1) for _ in range(length)]
        words = ["odd" if ones % 2 else "even" for ones in accumulate(bits)]
        return list(map(str, bits)), words if self.config.running else words[-1:]


@register("corpus", "brackets")
class Brackets(Probe):
    """Probe: target = the brackets that close the source, a prefix of Dyck-k (Hewitt et al. 2020, arXiv 2010.07515).

    The target of a balanced source is `done`.
    """

    class Config(Probe.Config):
        kinds: Drawn = Field(4, description="number of kinds of brackets, k")
        depth: Drawn = Field(6, description="maximum number of open brackets")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        """Draw a random walk in which opening and closing are equally likely if both are possible."""
        words: list[str] = []
        stack: list[int] = []
        for _ in range(length):
            if stack and (len(stack) == self.config.depth or rng.random() < 0.5):
                words.append(lettered("close", stack.pop()))
            else:
                stack.append(rng.randrange(self.config.kinds))
                words.append(lettered("open", stack[-1]))
        return words, [lettered("close", kind) for kind in reversed(stack)] or ["done"]


@register("corpus", "modular_addition")
class ModularAddition(Probe):
    """Probe: target = (a + b) mod p, memorized long before it generalizes (Power et al. 2022, arXiv 2201.02177).

    The length is the number of summands: 2 in the paper and by default.
    """

    example: ClassVar = {"count": 20, "modulus": 13}

    class Config(Probe.Config):
        count: PositiveInt = Field(1_500, description="number of distinct pairs in this split")
        shortest: Drawn = Field(2, description="minimum number of summands in train, valid and test")
        length: Drawn = Field(2, description="maximum number of summands in train, valid and test")
        longest: Drawn = Field(4, description="maximum number of summands in longer (must exceed length)")
        modulus: Drawn = Field(59, description="p")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        numbers = [rng.randrange(self.config.modulus) for _ in range(length)]
        return " + ".join(map(str, numbers)).split(), [str(sum(numbers) % self.config.modulus)]
