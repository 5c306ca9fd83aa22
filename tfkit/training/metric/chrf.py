"""chrF, as sacrebleu computes it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from tfkit.core.bounds import ORDER
from tfkit.core.options import NonNegativeInt, Order
from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric, sacrebleu_metrics


@register("metric", "chrf")
class Chrf(TextMetric):
    """F-score of character n-grams, recall counting beta = 2 times (Popovic 2015, aclanthology.org/W15-3049)."""

    package: ClassVar = "sacrebleu"

    class Config(TextMetric.Config):
        """Options of chrf."""

        lowercase: bool = Field(False, description="ignore case")
        char_order: Order = Field(6, description="longest n-gram of characters")
        word_order: NonNegativeInt = Field(0, le=ORDER.most, description="longest n-gram of words; 2 is chrF++")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options = {"lowercase": config.lowercase, "char_order": config.char_order, "word_order": config.word_order}

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The score of the corpus, 0 to 100."""
        chrf = sacrebleu_metrics("chrf").CHRF(**self.options)
        return float(chrf.corpus_score(outputs, [references]).score)
