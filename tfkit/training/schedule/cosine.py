"""Down along half a cosine."""

from __future__ import annotations

import math

from tfkit.core.registry import register
from tfkit.training.schedule.base import Decay


@register("schedule", "cosine")
class Cosine(Decay):
    """lr = final + (peak - final) * (1 + cos(pi * progress)) / 2 (Loshchilov and Hutter 2016, arXiv 1608.03983)."""

    class Config(Decay.Config):
        """Options of cosine."""

    def remaining(self, progress: float) -> float:
        """(1 + cos(pi * progress)) / 2."""
        return (1.0 + math.cos(math.pi * progress)) / 2.0
