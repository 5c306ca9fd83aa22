"""Copy a sequence."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, symbols


@register("corpus", "copying")
class Copying(Probe):
    """Probe: target = source, of random symbols (Graves et al. 2014, arXiv 1410.5401)."""

    class Config(Probe.Config):
        """Options of copying."""

        symbols: Drawn = Field(20, description="how many symbols there are")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words = rng.choices(symbols(self.config.symbols), k=length)
        return words, words
