"""Perplexity: the exponential of the cross-entropy."""

from __future__ import annotations

import math
from typing import ClassVar

from tfkit.core.registry import register
from tfkit.training.metric.base import LossMetric


@register("metric", "perplexity")
class Perplexity(LossMetric):
    """exp(nats per target) (Jelinek et al. 1977)."""

    higher_is_better: ClassVar = False

    class Config(LossMetric.Config):
        """Options of perplexity."""

    def from_loss(self, nats_per_target: float) -> float:
        """The perplexity; infinite where it is more than a number can hold."""
        try:
            return math.exp(nats_per_target)
        except OverflowError:
            return math.inf
