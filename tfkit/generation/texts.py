"""Many sequences at once: like lengths together, the order of the prompts kept."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.generation.greedy import greedy
from tfkit.generation.stepper import Ids, check_ids
from tfkit.models import Model


def write_all(
    model: Model,
    prompts: Sequence[Ids],
    limits: Sequence[int],
    end_id: int | None,
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
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        out = greedy(
            model,
            [prompts[row] for row in rows],
            [limits[row] for row in rows],
            end_id,
            sources=None if sources is None else [sources[row] for row in rows],
        )
        for row, ids in zip(rows, out, strict=True):
            written[row] = ids
    return written
