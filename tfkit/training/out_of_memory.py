"""Insufficient memory: a check before the first step, and the error if an allocation fails."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from tfkit.core.errors import TfkitError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.output import counted
from tfkit.training.division import piece_of, side_of
from tfkit.training.memory import Memory, activations_of
from tfkit.training.objective import Batch
from tfkit.training.setup import Task

KEPT = 16  # upper bound for most layers: vectors of width d_model, and rows of scores, saved per token
MOMENTS = 2  # state values per parameter in most optimizers
ADVICE = (
    "Use a smaller data.batch with a larger train.accumulate, or train.recompute: all; `tfkit plan` lists what fits."
)


class OutOfMemory(TfkitError):
    """A training step needs more memory than is available."""


@dataclass(frozen=True)
class Demand:
    """Memory needed for the largest batch of a task in one of `processes` processes."""

    task: Task
    processes: int = 1

    @cached_property
    def batch(self) -> Batch:
        """The batch with the most tokens, padding included, or one process's share of it."""
        feed = self.task.train
        plan, lengths = feed.plan(0), _lengths(self.task)
        sizes = [len(one) * lengths[np.hstack(list(one))].max() for one in plan]
        number = int(np.argmax(sizes))
        return piece_of(feed.make(0, number, plan[number]), 0, self.processes).batch

    @property
    def is_small(self) -> bool:
        """True if a rough upper bound is far below the free memory, so that measuring is unnecessary."""
        config, free = self.task.train.config, free_memory(self.task.train.device)
        longest = int(_lengths(self.task).max())
        tokens = config.tokens or (config.size or 1) * longest
        widths = sum((plan.d_model + longest) * plan.num_layers for plan in self.task.model.blueprint.stacks())
        return free is None or 4 * KEPT * tokens * widths < free // 4

    @cached_property
    def memory(self) -> Memory | None:
        """Memory of a step, or None if a part cannot run on fake tensors."""
        task, settings = self.task, self.task.settings
        parts = self.processes if settings.parallel.shard else 1
        weights = sum(one.nbytes for one in (*task.trained.parameters(), *task.trained.buffers())) // parts
        learned = sum(one.nbytes for one in task.trained.parameters() if one.requires_grad) // parts
        try:
            kept = activations_of(
                task.model.blueprint,
                lambda model, batch: task.objective.loss(model, batch, training=True),
                self.batch,
                settings,
                task.train.device,
            )
        except (RuntimeError, TypeError):
            return None
        return Memory(weights, learned, MOMENTS * learned, kept)

    def describe(self) -> str:
        """Describe the largest batch, the parameters and the memory they need."""
        rows, time = side_of(self.batch).shape[:2]
        count = sum(one.numel() for one in self.task.trained.parameters())
        tried = f"a batch of {counted(rows, 'row')} of {counted(time, 'token')} and {counted(count, 'parameter')}"
        if self.memory is None:
            return tried
        kinds = ("weights", "gradients", "optimizer", "activations")
        parts = ", ".join(f"{name} {readable_bytes(getattr(self.memory, name))}" for name in kinds)
        return f"{tried} take {readable_bytes(self.memory.total)} ({parts})"


def _lengths(task: Task) -> NDArray[np.int64]:
    """Return the length of each item: the maximum over its sides."""
    sides = np.asarray(task.train.lengths, dtype=np.int64).reshape(len(task.train.items), -1)
    longest: NDArray[np.int64] = sides.max(axis=1)
    return longest


def check_fits(task: Task, processes: int) -> None:
    """Raise OutOfMemory if a step certainly needs more memory than is free. Called before anything is written."""
    demand = Demand(task, processes)
    if demand.is_small or demand.memory is None:
        return
    free = free_memory(task.train.device)
    room = None if free is None else free + demand.memory.weights  # the weights are already allocated
    if room is not None and demand.memory.total > room:
        available = f"{task.train.device} has {readable_bytes(room)}"
        raise OutOfMemory(f"{demand.describe()}, but {available}. {ADVICE}")


def explained(task: Task, processes: int, step: int, last: int | None) -> OutOfMemory:
    """Return the error for a failed allocation. `last` is the step of the last complete checkpoint."""
    demand, device = Demand(task, processes), task.train.device
    if device.type == "cuda":
        torch.cuda.empty_cache()
    free = free_memory(device)
    available = "" if free is None else f"; {readable_bytes(free)} are now free"
    goes_on = "is complete; --resume continues from it with the same data.batch"
    kept = "" if last is None else f" The checkpoint of step {last:,} {goes_on}."
    failed = f"step {step:,}: out of memory on {device}"
    return OutOfMemory(f"{failed}: {demand.describe()}{available}. {ADVICE}{kept}")
