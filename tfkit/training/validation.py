"""Loss on held-out examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tfkit.models import Model
from tfkit.training.device import autocast
from tfkit.training.feed import Feed
from tfkit.training.samples import SampleOutput


@dataclass(frozen=True)
class ValidationScores:
    """Metrics and samples of a validation, besides the loss."""

    scores: dict[str, float] = field(default_factory=dict)
    samples: Sequence[SampleOutput] = ()


def mean_loss(model: Model, feed: Feed, precision: str = "float32") -> float:
    """Return nats per target over all items of `feed`, without dropout, smoothing or auxiliary losses."""
    total, count = total_loss(model, feed, precision)
    return total / count if count else float("nan")


def total_loss(model: Model, feed: Feed, precision: str = "float32", batches: int | None = None) -> tuple[float, int]:
    """Return total nats and number of targets, over all or the first `batches` of `feed`."""
    before = model.training
    model.eval()
    total, count = 0.0, 0
    try:
        # not inference mode: tensors cached by parts must remain usable in training
        with torch.no_grad(), autocast(feed.device, precision):
            for batch, indices in enumerate(feed.plan(0)[:batches]):
                loss = feed.objective.loss(model, feed.make(0, batch, indices), training=False)
                total += loss.total.item()
                count += loss.count
    finally:
        model.train(before)
    return total, count
