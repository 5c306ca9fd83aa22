"""my_part: a custom metric."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.training.metric.base import TextMetric


@tfkit.register("metric", "my_part")
class MyPart(TextMetric):
    """100 * (words equal to the reference at their position) / (words of the longer text)."""

    # Options of the part, as written in a recipe: {type: my_part, lowercase: true}. Add your own here.
    class Config(TextMetric.Config):
        lowercase: bool = Field(False, description="ignore case")

    config: Config
    higher_is_better = True  # False for errors and costs: keep: best, patience and studies go by it

    def compare(self, outputs: list[str], references: list[str]) -> float:
        # Change this: return one number for all texts. Both lists have the same length and are not empty.
        pairs = [(self._words(one), self._words(other)) for one, other in zip(outputs, references, strict=True)]
        right = sum(word == wanted for one, other in pairs for word, wanted in zip(one, other, strict=False))
        return 100.0 * right / max(1, sum(max(len(one), len(other)) for one, other in pairs))

    def _words(self, text: str) -> list[str]:
        return (text.lower() if self.config.lowercase else text).split()
