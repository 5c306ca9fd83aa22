"""Texts that match a pattern."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from tfkit.core.registry import register
from tfkit.generation.constraint.automaton import Automaton, automaton_of
from tfkit.generation.logits.guided import Guided


def _compiles(pattern: str) -> str:
    automaton_of(pattern)
    return pattern


@register("logits", "regex")
class Regex(Guided):
    """logit = -inf for what no match can follow, so that the whole text matches (Willard and Louf 2023, 2307.09702).

    The pattern is one of Python's `re`, without what is not regular: references back, looking ahead or behind.
    """

    class Config(Guided.Config):
        """Options of regex."""

        pattern: Annotated[str, AfterValidator(_compiles)] = Field(
            description="what the whole text matches, as Python's re.fullmatch understands it"
        )

    config: Config

    def automaton(self) -> Automaton:
        return automaton_of(self.config.pattern)
