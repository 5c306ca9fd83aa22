"""Write what followed the same symbol before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, symbols


@register("corpus", "induction")
class Induction(Probe):
    """Probe: ... a b c ... a: target = b c, what followed a before (Olsson et al. 2022, arXiv 2209.11895).

    The length is that of the sequence before the last symbol; no symbol stands in it twice.
    """

    example: ClassVar = {"count": 20, "shortest": 3, "following": 2}

    class Config(Probe.Config):
        """Options of induction."""

        shortest: Drawn = Field(5, description="the least length in train, valid and test")
        length: Drawn = Field(16, description="the largest length in train, valid and test")
        longest: Drawn = Field(32, description="the largest length in longer, which begins after length")
        symbols: Drawn = Field(40, description="how many symbols there are")
        following: Drawn = Field(4, description="how many symbols to write: those that followed, one after another")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if self.split != "longer" and self.shortest <= self.following:
                text = (
                    f"a sequence needs {self.following + 1} symbols or more for {self.following} to follow one of them"
                )
                yield Problem("shortest", text)
            most = self.longest if self.split == "longer" else self.length
            if most > self.symbols:
                yield Problem("symbols", f"are too few for a sequence of {most} different ones")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        text = rng.sample(symbols(self.config.symbols), length)
        following = self.config.following
        place = rng.randrange(length - following)
        return [*text, text[place]], text[place + 1 : place + 1 + following]
