"""Add two numbers modulo a third."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from tfkit.core.options import Drawn, PositiveInt
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe


@register("corpus", "modular_addition")
class ModularAddition(Probe):
    """Probe: target = (a + b) mod p, memorized first and understood later (Power et al. 2022, arXiv 2201.02177).

    The length is the number of summands: 2 in the paper, and by default.
    """

    example: ClassVar = {"count": 20, "modulus": 13}

    class Config(Probe.Config):
        """Options of modular_addition."""

        count: PositiveInt = Field(1_500, description="pairs in this split, all different")
        shortest: Drawn = Field(2, description="the fewest summands in train, valid and test")
        length: Drawn = Field(2, description="the most summands in train, valid and test")
        longest: Drawn = Field(4, description="the most summands in longer, which begins after length")
        modulus: Drawn = Field(59, description="p")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        numbers = [rng.randrange(self.config.modulus) for _ in range(length)]
        return " + ".join(map(str, numbers)).split(), [str(sum(numbers) % self.config.modulus)]
