"""Reverse a sequence."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe, symbols


@register("corpus", "reversal")
class Reversal(Probe):
    """Probe: target = source reversed, of random symbols (Grefenstette et al. 2015, arXiv 1506.02516)."""

    class Config(Probe.Config):
        """Options of reversal."""

        symbols: Drawn = Field(20, description="how many symbols there are")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words = rng.choices(symbols(self.config.symbols), k=length)
        return words, words[::-1]
