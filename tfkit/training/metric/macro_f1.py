"""The F1 of each class, all classes counting alike."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric


@register("metric", "macro_f1")
class MacroF1(TextMetric):
    """100 * mean over classes of 2 * true positives / (predicted + wanted) (van Rijsbergen 1979).

    The classes are the words of the outputs and of the references: labels, or tags.
    """

    class Config(TextMetric.Config):
        """Options of macro_f1."""

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The mean F1 in percent."""
        predicted: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for output, reference in zip(outputs, references, strict=True):
            for word, other in zip_longest(output.split(" "), reference.split(" ")):
                predicted.update([word] if word is not None else [])
                wanted.update([other] if other is not None else [])
                right.update([word] if word == other else [])
        classes = predicted.keys() | wanted.keys()
        return 100.0 * sum(2 * right[name] / (predicted[name] + wanted[name]) for name in classes) / len(classes)
