"""Loss on validation data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tfkit.models import Model
from tfkit.training.device import autocast
from tfkit.training.feed import Feed
from tfkit.training.processes import Team
from tfkit.training.samples import SampleOutput


@dataclass(frozen=True)
class ValidationScores:
    """Metrics other than the loss, and sample outputs of a validation."""

    scores: dict[str, float] = field(default_factory=dict)
    samples: Sequence[SampleOutput] = ()


def mean_loss(model: Model, feed: Feed, precision: str = "float32", team: Team | None = None) -> float:
    """Return the loss in nats per target over all items of `feed`, without dropout, smoothing or auxiliary losses.

    Batches are split over the processes of `team`, which all return the same result.
    """
    total, count = total_loss(model, feed, precision, team=team)
    return total / count if count else float("nan")


def total_loss(
    model: Model, feed: Feed, precision: str = "float32", batches: int | None = None, team: Team | None = None
) -> tuple[float, int]:
    """Return the total loss in nats and the number of targets, over `feed` or its first `batches` batches."""
    team = team or Team()
    before = model.training
    model.eval()
    plan = feed.plan(0)[:batches]
    sums = torch.zeros(-(-len(plan) // team.size), 2, dtype=torch.float64)  # this process's nats and targets by batch
    try:
        # not inference_mode, because tensors that parts cache must remain usable in training
        with torch.no_grad(), autocast(feed.device, precision):
            for place, first in enumerate(range(0, len(plan), team.size)):
                batch = min(first + team.rank, len(plan) - 1)  # repeated, so that all processes gather equally often
                loss = feed.objective.loss(model, feed.make(0, batch, plan[batch]), training=False)
                if batch == first + team.rank:
                    sums[place] = torch.tensor((loss.total.item(), loss.count), dtype=torch.float64)
    finally:
        model.train(before)
    nats, targets = team.gathered(sums).flatten(0, 1).T.tolist()
    return math.fsum(nats), int(sum(targets))
