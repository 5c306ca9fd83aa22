"""The gradient of one step: the mean over all targets of the batches that make it, and its norm kept in bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tfkit.models import Model
from tfkit.training.device import autocast
from tfkit.training.feed import Feed

Places = Iterator[tuple[int, int, Any]]  # epoch, batch and indices of each batch


@dataclass(frozen=True)
class Sums:
    """What the batches of a step gave: nats per target, targets, and the factor that the gradients still need."""

    loss: float
    targets: int
    factor: float


def accumulate(model: Model, feed: Feed, places: Places, count: int, precision: str) -> Sums:
    """Run `count` batches forward and backward; the gradients are left in the parameters, to be scaled by `factor`."""
    totals, targets = [], []
    for _ in range(count):
        batch = feed.make(*next(places))
        with autocast(feed.device, precision):
            loss = feed.objective.loss(model, batch, training=True)
        targets.append(loss.count)
        # how many targets come is not known yet: the first batch's count brings the gradients near their final size
        (loss.total / max(1, targets[0])).backward()  # type: ignore[no-untyped-call]
        totals.append(loss.total.detach())
    number = max(1, sum(targets))
    return Sums(float(torch.stack(totals).double().sum()) / number, number, max(1, targets[0]) / number)


def scale_gradients(parameters: Sequence[nn.Parameter], factor: float, clip_norm: float | None) -> float:
    """Multiply all gradients by `factor`, and their norm down to `clip_norm`; gives the norm before clipping."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients)) * factor
    if clip_norm is not None and norm > clip_norm:
        factor *= clip_norm / norm
    if factor != 1.0:
        torch._foreach_mul_(gradients, factor)
    return norm
