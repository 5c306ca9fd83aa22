"""Searches in batches of similar length, with results in the order of the prompts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from tfkit.core.errors import UsageError
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.room import check_room
from tfkit.generation.search import Candidate, Search
from tfkit.generation.stepper import evaluating
from tfkit.generation.strategy import Strategy
from tfkit.models.static import compiled_step


def find(strategy: Strategy, search: Search, batch_size: int = 64) -> list[list[Candidate]]:
    """Return the candidates of each prompt, best first, computed in batches of `batch_size`.

    Raise UsageError for incompatible settings before anything is computed, and PromptError for non-finite logits.
    """
    strategy.check(search)
    check_room(strategy, search.model, min(batch_size, len(search.prompts)))
    decoder, compiled = search.decoder or StepDecoder(search.model), search.step is compiled_step
    if compiled and decoder.quantize is not None:
        raise UsageError(f"generate.compile: a compiled step cannot use {decoder.quantize} weights; use one of the two")
    results: list[list[Candidate]] = [[] for _ in search.prompts]
    with evaluating(search.model):
        search = search if compiled else replace(search, model=decoder.current())  # the compiler packs weights itself
        for rows in _batches(search, batch_size):
            for row, candidates in zip(rows, strategy.search(_restarted(search.of(rows))), strict=True):
                results[row] = candidates
    return results


def _restarted(search: Search) -> Search:
    """Restart the clock of a search, once per batch."""
    return replace(search, began=time.monotonic())


def _batches(search: Search, batch_size: int) -> Iterator[list[int]]:
    """Yield batches of rows sorted by length; if a part does not support padding, a batch has only equal lengths."""
    read = search.prompts if search.sources is None else search.sources
    order = sorted(range(len(read)), key=lambda index: len(read[index]))
    alone = any(plan.without("padding") for plan in search.model.blueprint.stacks())
    for _, group in groupby(order, key=lambda row: (len(read[row]), len(search.prompts[row])) if alone else None):
        rows = list(group)
        for start in range(0, len(rows), batch_size):
            yield rows[start : start + batch_size]
