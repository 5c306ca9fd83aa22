"""The share of labels, or tags, that are right."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric


@register("metric", "accuracy")
class Accuracy(TextMetric):
    """100 * (words equal to the reference's word at that place) / words; a label is one word, a tag too."""

    class Config(TextMetric.Config):
        """Options of accuracy."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Percent of the words."""
        pairs = [(one.split(" "), other.split(" ")) for one, other in zip(outputs, references, strict=True)]
        right = sum(word == wanted for one, other in pairs for word, wanted in zip(one, other, strict=False))
        return 100.0 * right / sum(max(len(one), len(other)) for one, other in pairs)
