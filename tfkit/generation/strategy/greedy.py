"""Greedy search: always the most likely next token."""

from __future__ import annotations

from torch import Tensor

from tfkit.core.registry import register
from tfkit.functional.largest import argmax
from tfkit.generation.search import Candidate, Search
from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.rows import write_rows


@register("strategy", "greedy")
class Greedy(Strategy):
    """next = argmax p(token | prompt, what was written)."""

    def search(self, search: Search) -> list[list[Candidate]]:
        def choose(scores: Tensor, rows: list[int]) -> Tensor:
            return argmax(scores)

        return [[candidate] for candidate in write_rows(search, choose)]
