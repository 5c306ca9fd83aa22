"""Compute the value of an expression modulo p without intermediate steps."""

from __future__ import annotations

import random

from pydantic import Field

from tfkit.core.options import Drawn
from tfkit.core.registry import register
from tfkit.data.corpus.probe import Probe

OPERATIONS = ("+", "-", "*")


@register("corpus", "mano")
class Mano(Probe):
    """Probe: an expression with its operations in front; target = its value modulo p (Mano, arXiv 2512.17351).

    The length is the number of operations. A model has to know the tables of + - * by heart, and to apply them along
    the tree without writing anything between. The paper has p = 23, up to 10 to 16 operations, and a token for each
    number of operations.
    """

    class Config(Probe.Config):
        """Options of mano."""

        length: Drawn = Field(2, description="the most operations in train, valid and test")
        longest: Drawn = Field(4, description="the most operations in longer, which begins after length")
        modulus: Drawn = Field(13, description="p")

    config: Config

    def draw(self, length: int, rng: random.Random) -> tuple[list[str], list[str]]:
        words, value = self._expression(length, rng)
        return words, [str(value)]

    def _expression(self, operations: int, rng: random.Random) -> tuple[list[str], int]:
        """An expression of so many operations, divided at random between both sides, and its value."""
        if not operations:
            value = rng.randrange(self.config.modulus)
            return [str(value)], value
        operation, left = rng.choice(OPERATIONS), rng.randrange(operations)
        (first, a), (second, b) = self._expression(left, rng), self._expression(operations - 1 - left, rng)
        value = {"+": a + b, "-": a - b, "*": a * b}[operation]
        return [operation, *first, *second], value % self.config.modulus
