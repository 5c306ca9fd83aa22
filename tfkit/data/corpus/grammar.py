"""Context-free grammars in levels (Allen-Zhu and Li 2023, arXiv 2305.13673).

The symbols of a level are written as two or three symbols of the level below it, those of the last level are words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated

from pydantic import Field

from tfkit.data.corpus.probe import symbols

# bounds of their own: a sentence has up to 3^depth words, and breadth^3 rules are drawn from
Depth = Annotated[int, Field(ge=1, le=10)]
Breadth = Annotated[int, Field(ge=1, le=50)]
Rules = Annotated[int, Field(ge=1, le=1_000)]
CHILDREN = (2, 3)  # how many symbols a symbol becomes
Rule = tuple[int, ...]


@dataclass(frozen=True)
class Grammar:
    """`depth` levels of `breadth` symbols below the root; each symbol has `rules` rules, drawn with `seed`."""

    depth: int
    breadth: int
    rules: int
    seed: int

    @cached_property
    def levels(self) -> list[list[list[Rule]]]:
        """The rules of each symbol of each level, the root's first; no two symbols of a level share a rule."""
        rng = random.Random(f"grammar {self.depth} {self.breadth} {self.rules} {self.seed}")
        every = [rule for size in CHILDREN for rule in product(range(self.breadth), repeat=size)]
        levels: list[list[list[Rule]]] = []
        for level in range(self.depth):
            parents = 1 if level == 0 else self.breadth
            drawn = rng.sample(every, parents * self.rules)
            levels.append([drawn[parent::parents] for parent in range(parents)])
        return levels

    @property
    def possible(self) -> bool:
        """Whether there are so many different rules."""
        there = sum(pow(self.breadth, size) for size in CHILDREN)
        return bool(self.breadth * self.rules <= there)

    @property
    def least(self) -> int:
        """No sentence has fewer words."""
        return int(CHILDREN[0] ** self.depth)

    def sentence(self, rng: random.Random) -> list[str]:
        """A sentence, each rule of a symbol as likely as the others."""
        line = [0]
        for level in self.levels:
            line = [child for symbol in line for child in rng.choice(level[symbol])]
        words = symbols(self.breadth)
        return [words[symbol] for symbol in line]

    def derives(self, words: Sequence[str]) -> bool:
        """Whether the words are a sentence: each level is read from the one below, from every place it may begin at."""
        known = {word: number for number, word in enumerate(symbols(self.breadth))}
        if not words or not set(words) <= set(known):
            return False
        # ends[symbol][place]: where a symbol may end that begins at that place
        ends = [
            [{place + 1} if known[word] == one else set() for place, word in enumerate(words)]
            for one in range(self.breadth)
        ]
        for level in reversed(self.levels):
            ends = [[_ends(rules, ends, place) for place in range(len(words))] for rules in level]
        return len(words) in ends[0][0]


def _ends(rules: Sequence[Rule], ends: Sequence[Sequence[set[int]]], place: int) -> set[int]:
    """Where a symbol with these rules may end that begins at `place`, by where its children may."""
    found: set[int] = set()
    for rule in rules:
        at = {place}
        for child in rule:
            at = {end for begin in at if begin < len(ends[child]) for end in ends[child][begin]}
        found |= at
    return found
