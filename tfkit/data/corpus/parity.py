"""Decide whether the number of ones is even."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe


@register("corpus", "parity")
class Parity(Probe):
    """Probe: target = even or odd, the number of ones in the source (Hahn 2020, arXiv 1906.06755)."""

    class Config(Probe.Config):
        """Options of parity."""

        count: PositiveInt = Field(10_000, description="pairs in this split, all different")
        length: PositiveInt = Field(16, description="the largest length in train, valid and test")
        longest: PositiveInt = Field(32, description="the largest length in longer, which begins after length")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        bits = [rng.randint(0, 1) for _ in range(length)]
        return list(map(str, bits)), ["odd" if sum(bits) % 2 else "even"]
