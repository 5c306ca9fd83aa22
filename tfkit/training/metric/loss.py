"""Metrics computed from the loss."""

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
        """Return the perplexity, or inf on overflow."""
        try:
            return math.exp(nats_per_target)
        except OverflowError:
            return math.inf


@register("metric", "bits_per_character")
class BitsPerCharacter(LossMetric):
    """Loss of a text in nats / (ln 2 * number of its characters) (Graves 2013, arXiv 1308.0850)."""

    higher_is_better: ClassVar = False
    per_character: ClassVar = True

    class Config(LossMetric.Config):
        """Options of bits_per_character."""

    def from_loss(self, nats_per_target: float) -> float:
        """Convert nats to bits per character."""
        return nats_per_target / math.log(2)
