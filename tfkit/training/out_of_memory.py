"""Insufficient memory: a check before the first step, and the error if an allocation fails."""

from __future__ import annotations

import numpy as np
import torch

from tfkit.core.errors import TfkitError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.output import counted
from tfkit.training.division import piece_of, side_of
from tfkit.training.planning import activations_of
from tfkit.training.setup import Task

KEPT = 16  # upper bound for most layers: vectors of width d_model, and rows of scores, saved per token
MOMENTS = 2  # state values per parameter in most optimizers
ADVICE = (
    "use a smaller data.batch with a larger train.accumulate, or train.recompute: all; `tfkit plan` lists what fits"
)


class OutOfMemory(TfkitError):
    """A training step needs more memory than is available."""


def check_fits(task: Task, processes: int) -> None:
    """Raise OutOfMemory if a step certainly needs more memory than is free. Called before anything is written."""
    feed, device, settings = task.train, task.train.device, task.settings
    free, plan = free_memory(device), feed.plan(0)
    lengths = np.asarray(feed.lengths, dtype=np.int64).reshape(len(feed.items), -1).max(axis=1)
    tokens = feed.config.tokens or (feed.config.size or 1) * lengths.max()
    widths = sum((stack.d_model + lengths.max()) * stack.num_layers for stack in task.model.blueprint.stacks())
    if free is None or 4 * KEPT * tokens * widths < free // 4:  # far below, so that measuring is unnecessary
        return
    largest = int(np.argmax([len(one) * lengths[np.hstack(list(one))].max() for one in plan]))
    batch = piece_of(feed.make(0, largest, plan[largest]), 0, processes).batch
    loss = task.objective.loss
    try:
        kept = activations_of(
            task.model.blueprint, lambda model, one: loss(model, one, training=True), batch, settings, device
        )
    except (RuntimeError, TypeError):  # a part that cannot run on fake tensors
        return
    parts = processes if settings.parallel.shard else 1
    learned = sum(one.nbytes for one in task.trained.parameters() if one.requires_grad) // parts
    needed = (1 + MOMENTS) * learned + kept
    if needed > free:
        rows, time = side_of(batch).shape[:2]
        what = f"a batch of {counted(rows, 'row')} of {counted(time, 'token')} takes {readable_bytes(needed)}"
        raise OutOfMemory(f"{what} besides the weights, but {device} has {readable_bytes(free)}; {ADVICE}")


def explained(device: torch.device, step: int, last: int | None) -> OutOfMemory:
    """Return the error for a failed allocation. `last` is the step of the last complete checkpoint."""
    goes_on = "is complete; --resume continues from it with the same data.batch"
    kept = "" if last is None else f". The checkpoint of step {last:,} {goes_on}"
    return OutOfMemory(f"step {step:,}: out of memory on {device}; {ADVICE}{kept}")
