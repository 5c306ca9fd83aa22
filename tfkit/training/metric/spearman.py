"""Spearman's rank correlation of outputs and references."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric
from tfkit.training.metric.correlation import SAMPLES, correlation, numbers, ranks


@register("metric", "spearman")
class Spearman(TextMetric):
    """100 * Pearson's r of the ranks of outputs and references, equal ones sharing a rank (Spearman 1904)."""

    samples = SAMPLES
    compares: ClassVar = "numbers"

    class Config(TextMetric.Config):
        """Options of spearman."""

    def check_reference(self, reference: str) -> None:
        numbers([reference], self.part_name)

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The correlation, -100 to 100; 0 where one side does not vary."""
        return correlation(*(ranks(numbers(texts, self.part_name)) for texts in (outputs, references)))
