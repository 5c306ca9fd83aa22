"""Write numbers in ascending order."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe


@register("corpus", "sorting")
class Sorting(Probe):
    """Probe: target = the numbers of the source in ascending order (Graves et al. 2014, arXiv 1410.5401)."""

    class Config(Probe.Config):
        """Options of sorting."""

        largest: Drawn = Field(50, description="numbers are from 0 to this")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        numbers = [rng.randint(0, self.config.largest) for _ in range(length)]
        return list(map(str, numbers)), list(map(str, sorted(numbers)))
