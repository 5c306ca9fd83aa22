"""The share of texts that a grammar derives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Seed
from tfkit.core.registry import register
from tfkit.data.corpus.grammar import Breadth, Depth, Grammar, Rules
from tfkit.training.metric.base import TextMetric


@register("metric", "grammatical")
class Grammatical(TextMetric):
    """100 * (sources that an output makes a sentence of the corpus `lano`) / outputs, whatever the reference.

    Its options are those of the corpus, whose grammar it reads texts with (Allen-Zhu and Li 2023, arXiv 2305.13673).
    """

    compares: ClassVar = "continuations"

    class Config(TextMetric.Config):
        """Options of grammatical."""

        depth: Depth = Field(3, description="levels of the grammar")
        breadth: Breadth = Field(3, description="symbols of a level, and words")
        rules: Rules = Field(3, description="rules of each symbol")
        grammar_seed: Seed = Field(1, description="of the rules")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if not Grammar(self.depth, self.breadth, self.rules, self.grammar_seed).possible:
                yield Problem("rules", f"{self.breadth} symbols have not so many different rules")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.grammar = Grammar(config.depth, config.breadth, config.rules, config.grammar_seed)
        if self.grammar.possible:
            right = [" ".join(self.grammar.sentence(random.Random(number))) for number in range(3)]
            self.samples = (tuple(right), ("no", "sentence", "of it"))

    def check_reference(self, reference: str) -> None:
        if not self.grammar.derives(reference.split()):
            raise UsageError(
                f"'{reference}' is no sentence of the grammar of {self.part_name}; give it the corpus's options"
            )

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """Percent of the outputs that the grammar derives."""
        return 100.0 * sum(self.grammar.derives(output.split()) for output in outputs) / len(outputs)
