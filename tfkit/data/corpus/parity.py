"""Decide whether the number of ones is even."""

from __future__ import annotations

import random
from itertools import accumulate

from pydantic import Field

from tfkit.core.options import Drawn, PositiveInt
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe


@register("corpus", "parity")
class Parity(Probe):
    """Probe: target = even or odd, the number of ones in the source (Hahn 2020, arXiv 1906.06755).

    `running` asks for it after each bit: one step at a time, so that a Transformer can do what it cannot at once
    (Anil et al. 2022, arXiv 2207.04901).
    """

    class Config(Probe.Config):
        """Options of parity."""

        count: PositiveInt = Field(10_000, description="pairs in this split, all different")
        length: Drawn = Field(16, description="the largest length in train, valid and test")
        longest: Drawn = Field(32, description="the largest length in longer, which begins after length")
        running: bool = Field(False, description="the target says even or odd after each bit, not at the end alone")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        bits = [rng.randint(0, 1) for _ in range(length)]
        words = ["odd" if ones % 2 else "even" for ones in accumulate(bits)]
        return list(map(str, bits)), words if self.config.running else words[-1:]
