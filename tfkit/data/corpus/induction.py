"""Write what followed the same symbol before."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, symbols


@register("corpus", "induction")
class Induction(Probe):
    """Probe: ... a b ... a: target = b (Olsson et al. 2022, arXiv 2209.11895).

    The length is that of the sequence before the last symbol, which stands in it exactly once.
    """

    class Config(Probe.Config):
        """Options of induction."""

        shortest: PositiveInt = Field(4, description="the least length in train, valid and test")
        length: PositiveInt = Field(16, description="the largest length in train, valid and test")
        longest: PositiveInt = Field(32, description="the largest length in longer, which begins after length")
        symbols: PositiveInt = Field(16, description="how many symbols there are, beside the one that comes twice")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words = symbols(self.config.symbols + 1)
        trigger = rng.choice(words)
        others = [word for word in words if word != trigger]
        text = rng.choices(others, k=length)
        place = rng.randrange(length - 1) if length > 1 else 0
        text[place] = trigger
        answer = text[place + 1] if place + 1 < length else trigger
        return [*text, trigger], [answer]
