"""Down in a straight line."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.training.schedule.base import Decay


@register("schedule", "linear")
class LinearDecay(Decay):
    """lr = final + (peak - final) * (1 - progress), after a linear warmup (Devlin et al. 2018, arXiv 1810.04805)."""

    class Config(Decay.Config):
        """Options of linear."""

    def remaining(self, progress: float) -> float:
        """1 - progress."""
        return 1.0 - progress
