"""Many sequences at once: like lengths together, the order of the prompts kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from tfkit.generation.decoder import StepDecoder
from tfkit.generation.room import check_room
from tfkit.generation.search import Candidate, Search
from tfkit.generation.stepper import evaluating
from tfkit.generation.strategy import Strategy


def find(strategy: Strategy, search: Search, batch_size: int = 64) -> list[list[Candidate]]:
    """The candidates of each prompt, the best first; `batch_size` prompts at a time.

    Raises UsageError for what the strategy cannot do, before anything is computed; PromptError where the model's logits
    are no numbers.
    """
    strategy.check(search)
    check_room(strategy, search.model, min(batch_size, len(search.prompts)))
    found: list[list[Candidate]] = [[] for _ in search.prompts]
    with evaluating(search.model):
        decoder = search.decoder or StepDecoder(search.model)
        search = replace(search, model=decoder.current())
        for rows in _batches(search, batch_size):
            for row, candidates in zip(rows, strategy.search(_begun(search.of(rows))), strict=True):
                found[row] = candidates
    return found


def _begun(search: Search) -> Search:
    """A search whose time counts from now; each batch has its own."""
    return replace(search, began=time.monotonic())


def _batches(search: Search, batch_size: int) -> Iterator[list[int]]:
    """Rows to be written together; of one length where some part cannot leave padding out."""
    read = search.prompts if search.sources is None else search.sources
    order = sorted(range(len(read)), key=lambda index: len(read[index]))
    alone = any(plan.without("padding") for plan in search.model.blueprint.stacks())
    for _, alike in groupby(order, key=lambda row: (len(read[row]), len(search.prompts[row])) if alone else None):
        rows = list(alike)
        for start in range(0, len(rows), batch_size):
            yield rows[start : start + batch_size]
