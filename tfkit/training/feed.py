"""Batches on the training device. Each is a pure function of seed, epoch and batch index."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from tfkit.core.errors import DataError
from tfkit.data.batches import BatchOrder, padding_share, plan, plan_packed
from tfkit.recipe.settings import sections
from tfkit.training.objective import Batch, Item, Objective

TRAIN, VALID = 1, 2  # separate RNG streams


class Made(NamedTuple):
    """A batch with its position. `after` is the (epoch, batch) that follows it."""

    epoch: int
    number: int
    indices: Any
    batch: Batch
    after: tuple[int, int]


class Feed:
    """Batches of the training or validation data."""

    def __init__(
        self,
        objective: Objective,
        items: Sequence[Item],
        batch: sections.Batch,
        seed: int,
        device: torch.device,
        purpose: int = TRAIN,
    ) -> None:
        self.objective = objective
        self.items = items
        self.config = batch
        self.seed = seed
        self.device = device
        self.purpose = purpose
        self.lengths = objective.rows.lengths(items)
        self.plan = functools.lru_cache(maxsize=1)(self._plan)

    def _plan(self, epoch: int) -> list[Any]:
        """Return the item indices of each batch of an epoch, or of each row if batches are packed."""
        if self.config.pack:
            return plan_packed(self.lengths, self.config, self.seed, epoch)
        return plan(self.lengths, self.config, self.seed, epoch)

    def order(self, epoch: int = 0, batch: int = 0) -> BatchOrder[Any]:
        """Return an endless iterator over planned batches, starting at this position."""
        return BatchOrder(self.plan, epoch, batch)

    def made(self, order: BatchOrder[Any]) -> Iterator[Made]:
        """Collate the batches of `order` lazily. Errors name the batch and its epoch."""
        for epoch, number, indices in order:
            try:
                batch = self.make(epoch, number, indices)
            except DataError as error:
                raise DataError(f"batch {number} of epoch {epoch}: {error}") from None
            except Exception as error:
                error.add_note(f"raised for batch {number} of epoch {epoch}")
                raise
            yield Made(epoch, number, indices, batch, order.state)

    def steps(self, epochs: int, accumulate: int) -> int:
        """Count the optimizer steps of `epochs` epochs, which may differ in their number of batches."""
        batches = sum(len(self.plan(epoch)) for epoch in range(epochs))
        return -(-batches // accumulate)

    def make(self, epoch: int, batch: int, indices: Any) -> Batch:
        """Collate one batch, with an RNG derived from its position."""
        rng = np.random.default_rng([self.seed, self.purpose, epoch, batch])
        if self.config.pack:
            rows = [[self.items[index] for index in row] for row in indices]
            made = self.objective.rows.collate_packed(rows, self.config.length or 0, rng)
        else:
            made = self.objective.rows.collate([self.items[index] for index in indices], rng)
        if self.device.type == "cuda":  # pinned memory lets copies overlap with compute
            return {name: tensor.pin_memory().to(self.device, non_blocking=True) for name, tensor in made.items()}
        return {name: tensor.to(self.device) for name, tensor in made.items()}

    def __str__(self) -> str:
        """Describe the number and size of batches."""
        batches = self.plan(0)
        real = int(np.asarray(self.lengths).reshape(len(self.items), -1)[:, -1].sum())
        number = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
        words = f"{number} of about {real / len(batches):,.0f} tokens"
        if self.config.pack:
            return words + f", packed in rows of {self.config.length}"
        return words + f" ({padding_share(batches, self.lengths):.0%} padding)"
