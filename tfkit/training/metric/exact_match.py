"""The share of outputs that equal their reference."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric


@register("metric", "exact_match")
class ExactMatch(TextMetric):
    """100 * (outputs equal to their reference) / outputs."""

    class Config(TextMetric.Config):
        """Options of exact_match."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Percent of the outputs that equal their reference."""
        right = sum(output == reference for output, reference in zip(outputs, references, strict=True))
        return 100.0 * right / len(outputs)
