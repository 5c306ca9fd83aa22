"""Pearson's correlation of outputs and references."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric
from tfkit.training.metric.correlation import SAMPLES, correlation, numbers


@register("metric", "pearson")
class Pearson(TextMetric):
    """100 * covariance / (standard deviations multiplied) of outputs and references (Pearson 1895)."""

    samples = SAMPLES
    compares: ClassVar = "numbers"

    class Config(TextMetric.Config):
        """Options of pearson."""

    def check_reference(self, reference: str) -> None:
        numbers([reference], self.part_name)

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The correlation, -100 to 100; 0 where one side does not vary."""
        return correlation(numbers(outputs, self.part_name), numbers(references, self.part_name))
