"""BLEU, as sacrebleu computes it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric, sacrebleu_metrics


@register("metric", "bleu")
class Bleu(TextMetric):
    """100 * brevity penalty * geometric mean of 1- to 4-gram precisions (Papineni 2002; Post 2018: 1804.08771)."""

    package: ClassVar = "sacrebleu"

    class Config(TextMetric.Config):
        """Options of bleu."""

        lowercase: bool = Field(False, description="ignore case")
        tokenize: Literal["13a", "intl", "char", "zh"] | None = Field(
            "13a", description="how texts are cut into words; none: they are cut already, by spaces"
        )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lowercase = config.lowercase
        self.tokenize = config.tokenize or "none"

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """BLEU of the corpus, 0 to 100."""
        # force: texts that are cut into words already are no mistake here, so sacrebleu need not warn of them
        bleu = sacrebleu_metrics("bleu").BLEU(lowercase=self.lowercase, tokenize=self.tokenize, force=True)
        return float(bleu.corpus_score(outputs, [references]).score)
