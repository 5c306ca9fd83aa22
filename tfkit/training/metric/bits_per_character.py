"""Bits per character, which do not depend on the tokenizer."""

from __future__ import annotations

import math
from typing import ClassVar

from tfkit.core.registry import register
from tfkit.training.metric.base import LossMetric


@register("metric", "bits_per_character")
class BitsPerCharacter(LossMetric):
    """Nats of the whole text / (ln 2 * its characters) (Graves 2013, arXiv 1308.0850)."""

    higher_is_better: ClassVar = False
    per_character: ClassVar = True

    class Config(LossMetric.Config):
        """Options of bits_per_character."""

    def from_loss(self, nats_per_target: float) -> float:
        """Bits of a loss in nats per character."""
        return nats_per_target / math.log(2)
