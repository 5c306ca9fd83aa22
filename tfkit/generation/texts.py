"""Many sequences at once: like lengths together, the order of the prompts kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tfkit.generation.greedy import greedy
from tfkit.generation.rules import Rules
from tfkit.generation.stepper import Ids, check_ids
from tfkit.models import Model


def write_all(
    model: Model,
    prompts: Sequence[Ids],
    limits: Sequence[int],
    rules: Rules | None = None,
    sources: Sequence[Ids] | None = None,
    batch_size: int = 64,
) -> list[list[int]]:
    """What the model writes behind each prompt, at most `limits[i]` tokens; `batch_size` rows at a time.

    Raises UsageError for what the model cannot read, before anything is computed.
    """
    check_ids(model, prompts, sources)
    read = prompts if sources is None else sources
    order = sorted(range(len(read)), key=lambda index: len(read[index]))
    written: list[list[int]] = [[] for _ in read]
    for rows in _batches(model, order, prompts, read, batch_size):
        out = greedy(
            model,
            [prompts[row] for row in rows],
            [limits[row] for row in rows],
            rules,
            sources=None if sources is None else [sources[row] for row in rows],
        )
        for row, ids in zip(rows, out, strict=True):
            written[row] = ids
    return written


def _batches(
    model: Model, order: Sequence[int], prompts: Sequence[Ids], read: Sequence[Ids], batch_size: int
) -> Iterator[list[int]]:
    """Rows to be written together; of one length where some part cannot leave padding out."""
    alone = any(plan.without("padding") for plan in model.blueprint.stacks())
    for _, alike in groupby(order, key=lambda row: (len(read[row]), len(prompts[row])) if alone else None):
        rows = list(alike)
        for start in range(0, len(rows), batch_size):
            yield rows[start : start + batch_size]
