"""Compilation, and the gradient of one step: averaged over the targets of all its batches, with norm clipping."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from tfkit.core.errors import RecipeError
from tfkit.functional.dropout import number_calls
from tfkit.models import Model
from tfkit.runs.history import autocast
from tfkit.runs.weights import whole_tensor
from tfkit.training.distillation import Distillation
from tfkit.training.division import Division, side_of
from tfkit.training.feed import Feed, Made
from tfkit.training.objective import Batch, Loss
from tfkit.training.setup import Task

COMPILERS = ("g++", "clang++", "c++", "cl")  # C++ compilers that torch can use for CPU kernels


def compiled(task: Task) -> Model:
    """Return the model used in training steps. With `train.compile`, it is compiled and shares the weights."""
    if not task.settings.compile:
        return task.model
    module = cast(torch.nn.Module, torch.compile(task.model))
    number_calls(module)
    return cast(Model, module)


def check_compile(task: Task) -> None:
    """Raise RecipeError if `train.compile` is set but a required C++ compiler is missing."""
    compilers = [os.environ.get("CXX", ""), *filter(shutil.which, COMPILERS)]
    if task.settings.compile and task.train.device.type == "cpu" and not any(compilers):
        text = "CPU kernels require a C++ compiler, and none is installed; install one, such as g++, or remove this key"
        raise RecipeError([task.recipe.fault("train.compile", text)])


@dataclass(frozen=True)
class StepSums:
    """Totals of a step: `loss` in nats per target, `read` input tokens, and `targets` included in the loss.

    The accumulated gradients, whose total norm is `norm`, must still be multiplied by `factor`.
    """

    loss: float
    read: int
    targets: int
    factor: float
    norm: float


def computing(model: Model, feed: Feed, precision: str, taught: Distillation | None = None) -> Callable[[Batch], Loss]:
    """Return a function that computes the training loss of a batch: the objective's, or the distillation loss."""

    def compute(batch: Batch) -> Loss:
        with autocast(feed.device, precision):
            return feed.objective.loss(model, batch, training=True) if taught is None else taught.loss(model, batch)

    return compute


def accumulate(
    division: Division, feed: Feed, batches: Iterator[Made], count: int, parameters: Sequence[nn.Parameter]
) -> StepSums:
    """Run the forward and backward passes of `count` batches. The caller multiplies the gradients by `factor`.

    Dropout depends only on the seed and the position of a batch. Totals include all processes. The host waits for the
    device once.
    """
    losses: list[Loss] = []
    read = 0  # as far as the host knows it
    counted: list[Tensor] = []
    size = 0
    for left in reversed(range(count)):
        epoch, number, indices, batch, _ = next(batches)
        # the number of targets is not known yet; a division by the number of positions keeps gradients near their
        # final scale
        size = size or side_of(batch).shape[:2].numel()
        losses.append(division.backward(batch, (feed.seed, epoch, number), 1 / size, left == 0))
        for tokens in tokens_read(feed, batch, indices):
            if isinstance(tokens, Tensor):
                counted.append(tokens)
            else:
                read += tokens
    norm = whole_tensor(torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None]))
    found = torch.stack([one.double() for one in (norm, *counted, *(loss.total for loss in losses))]).cpu()
    totals = found[1 + len(counted) :]
    counts = torch.tensor([float(loss.count) for loss in losses], dtype=torch.float64)
    sums = division.team.gathered(torch.stack((totals, counts)))  # [process 2 batch]
    targets = max(1, int(sums[:, 1].sum()))
    # exactly rounded, so that the order of processes does not matter
    loss = math.fsum(sums[:, 0].flatten().tolist()) / targets
    read += int(found[1 : 1 + len(counted)].sum())
    return StepSums(loss, read, targets, size / targets, float(found[0]))


def tokens_read(feed: Feed, batch: Batch, indices: Any) -> list[Tensor | int]:
    """Count the input tokens of each stack, without padding.

    Without a mask, use the item lengths, which are upper bounds if tokens are sampled.
    """
    items = np.hstack([np.asarray(row, dtype=np.int64) for row in indices])
    sides = np.asarray(feed.lengths).reshape(len(feed.items), -1)[items].sum(axis=0).tolist()
    names = [name for name in ("input_ids", "inputs_embeds", "decoder_input_ids") if name in batch]
    return [_real(batch, name, bound) for name, bound in zip(names, sides, strict=False)]


def _real(batch: Batch, name: str, bound: int) -> Tensor | int:
    """Count the positions of one input that are not padding, up to `bound`."""
    if name == "inputs_embeds":  # the lengths of arrays are exact
        return bound
    for mask in (name.replace("input_ids", "attention_mask"), "segment_ids"):
        if mask in batch:
            return batch[mask].count_nonzero().clamp(max=bound)
    return min(batch[name].numel(), bound)


def scale_gradients(parameters: Sequence[nn.Parameter], sums: StepSums, clip_norm: float | None) -> float:
    """Multiply all gradients by the factor of `sums`, and clip their total norm to `clip_norm`.

    Return the norm before clipping.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    factor, norm = sums.factor, sums.norm * sums.factor
    if clip_norm is not None and norm > clip_norm:
        factor *= clip_norm / norm
    if factor != 1.0:
        torch._foreach_mul_(gradients, factor)
    return norm
