"""Continue sentences of a grammar that is known from examples alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Drawn, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.grammar import Breadth, Depth, Grammar, Rules
from tfkit.data.corpus.probe import Probe


@register("corpus", "lano")
class Lano(Probe):
    """Probe: the first words of a sentence of a context-free grammar; target = the rest (Lano, arXiv 2512.17351).

    The length is the number of words that are given. Other rests are right too, so that its metric is `grammatical`:
    whether the grammar derives the words given with those written. A sentence belongs to one split.
    """

    metric: ClassVar[str] = "grammatical"

    class Config(Probe.Config):
        """Options of lano."""

        length: Drawn = Field(4, description="the most words given in train, valid and test")
        longest: Drawn = Field(7, description="the most words given in longer, which begins after length")
        depth: Depth = Field(3, description="levels of the grammar")
        breadth: Breadth = Field(3, description="symbols of a level, and words")
        rules: Rules = Field(3, description="rules of each symbol")
        grammar_seed: Seed = Field(1, description="of the rules")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            grammar = grammar_of(self)
            most = self.longest if self.split == "longer" else self.length
            if not grammar.possible:
                yield Problem("rules", f"{self.breadth} symbols have not so many different rules")
            elif most >= grammar.least:
                yield Problem("length", f"a sentence may have {grammar.least} words: give fewer than these")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.grammar = grammar_of(config)

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words = self.grammar.sentence(rng)
        return words[:length], words[length:]

    def identity(self, source: str, target: str) -> str:
        return f"{source} {target}"


def grammar_of(config: Lano.Config) -> Grammar:
    """The grammar that these options stand for."""
    return Grammar(config.depth, config.breadth, config.rules, config.grammar_seed)
