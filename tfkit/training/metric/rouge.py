"""ROUGE: overlap of a summary with its reference."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tfkit.core.registry import register
from tfkit.data.sentences import first_sentence
from tfkit.training.metric.base import TextMetric

_WORD = re.compile(r"[a-z0-9]+")


_WRITTEN = {"1": 1, "2": 2, "l": "L"}


def _as_written(value: Any) -> Any:
    """The order that a recipe may have in quotes or in lower case; `true` is none, though Python takes it for 1."""
    if isinstance(value, (bool, float)):
        raise ValueError(f"expected 1, 2 or 'L', got {str(value).lower()}")
    return _WRITTEN.get(value, value) if isinstance(value, str) else value


Order = Annotated[
    Literal[1, 2, "L"], BeforeValidator(_as_written, json_schema_input_type=Literal[1, 2, "1", "2", "L", "l"])
]


@register("metric", "rouge")
class Rouge(TextMetric):
    """100 * mean over texts of the F1 of common n-grams, or of the longest common subsequence (Lin 2004: W04-1013).

    Words are runs of letters a-z and digits, in lower case and unstemmed, as in the package rouge_score. The name of
    the score is `rouge`, `rouge_1` for of: 1, `rouge_2` for of: 2; the lead's is `rouge.lead`.
    """

    class Config(TextMetric.Config):
        """Options of rouge."""

        of: Order = Field("L", description="words, pairs of words, or the longest common subsequence")
        lead: bool = Field(False, description="also what the first sentence of each source scores, to compare with")

        def scores(self) -> tuple[str, ...]:
            name, *ranges = super().scores()
            own = name if self.of == "L" else f"{name}_{self.of}"
            return (own, *(own + one.removeprefix(name) for one in ranges), *([f"{own}.lead"] if self.lead else []))

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.of = config.of

    def of_sources(self, sources: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """The score of the first sentences, if `lead` is set."""
        if not self.config.lead:
            return {}
        leads = [first_sentence(source)[0] for source in sources]
        return {self.config.scores()[-1]: self.score(leads, references)}

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The mean F1 in percent; a text without such words scores 0."""
        pairs = zip(outputs, references, strict=True)
        return 100.0 * sum(self._f1(words(one), words(other)) for one, other in pairs) / len(outputs)

    def _f1(self, output: list[str], reference: list[str]) -> float:
        if isinstance(self.of, str):
            common, size = longest_common(output, reference), len(output) + len(reference)
        else:
            one, other = grams(output, self.of), grams(reference, self.of)
            common, size = (one & other).total(), one.total() + other.total()
        return 2 * common / size if size else 0.0


def words(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text.lower())


def grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    """How often each run of `order` words is there."""
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest sequence of words that both have in that order."""
    best = [0] * (len(other) + 1)
    for word in one:
        before = 0  # of the row above, one column back
        for place, wanted in enumerate(other, 1):
            here = best[place]
            best[place] = before + 1 if word == wanted else max(here, best[place - 1])
            before = here
    return best[-1]
