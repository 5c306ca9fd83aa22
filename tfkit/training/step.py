"""Gradient of one step: the mean over all targets of its batches, with norm clipping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfkit.models import Model
from tfkit.training.device import autocast
from tfkit.training.distillation import Distillation
from tfkit.training.feed import Feed
from tfkit.training.objective import Batch

Places = Iterator[tuple[int, int, Any]]  # (epoch, batch, indices)


@dataclass(frozen=True)
class StepSums:
    """Loss in nats per target, token counts, and the pending gradient factor of a step.

    `read` counts input tokens, `targets` the tokens with a loss.
    """

    loss: float
    read: int
    targets: int
    factor: float


def accumulate(
    model: Model, feed: Feed, places: Places, count: int, precision: str, taught: Distillation | None = None
) -> StepSums:
    """Run `count` batches forward and backward. The caller multiplies the gradients by `factor`.

    The loss is the objective's, or the distillation loss if `taught` is set.
    """
    totals, targets = [], []
    read: Tensor | int = 0
    for _ in range(count):
        epoch, number, indices = next(places)
        batch = feed.make(epoch, number, indices)
        with autocast(feed.device, precision):
            loss = feed.objective.loss(model, batch, training=True) if taught is None else taught.loss(model, batch)
        targets.append(loss.count)
        read += tokens_read(feed, batch, indices)
        # the total is unknown yet: dividing by the first batch's count keeps gradients near their final scale
        (loss.total / max(1, targets[0])).backward()  # type: ignore[no-untyped-call]
        totals.append(loss.total.detach())
    number = max(1, sum(targets))
    loss_ = float(torch.stack(totals).double().sum()) / number
    return StepSums(loss_, int(read), number, max(1, targets[0]) / number)


def tokens_read(feed: Feed, batch: Batch, indices: Any) -> Tensor | int:
    """Count the input tokens on all sides, without padding.

    Without a mask, use the item lengths, which may be upper bounds if tokens are sampled.
    """
    items = np.hstack([np.asarray(row, dtype=np.int64) for row in indices])
    sides = np.asarray(feed.lengths).reshape(len(feed.items), -1)[items].sum(axis=0).tolist()
    names = [name for name in ("input_ids", "inputs_embeds", "decoder_input_ids") if name in batch]
    return sum(_real(batch, name, bound) for name, bound in zip(names, sides, strict=False))


def _real(batch: Batch, name: str, bound: int) -> Tensor | int:
    """Count the non-padding positions of one side, at most `bound`."""
    if name == "inputs_embeds":  # the lengths of arrays are known
        return bound
    for mask in (name.replace("input_ids", "attention_mask"), "segment_ids"):
        if mask in batch:
            return batch[mask].count_nonzero().clamp(max=bound)
    return min(batch[name].numel(), bound)


def scale_gradients(parameters: Sequence[nn.Parameter], factor: float, clip_norm: float | None) -> float:
    """Multiply all gradients by `factor` and clip their norm to `clip_norm`; return the norm before clipping."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients)) * factor
    if clip_norm is not None and norm > clip_norm:
        factor *= clip_norm / norm
    if factor != 1.0:
        torch._foreach_mul_(gradients, factor)
    return norm
