"""Batches on the training device, pure functions of seed, epoch and index, prefetched in a background thread."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, NamedTuple

import numpy as np
import torch

from tfkit.core.errors import DataError
from tfkit.data.batches import BatchOrder, padding_share, plan, plan_packed
from tfkit.recipe.settings import sections
from tfkit.training.objective import Batch, Item, Objective
from tfkit.training.objective.rows import batch_of

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
            made = batch_of(self.objective.rows, [self.items[index] for index in indices], rng)
        if self.device.type == "cuda":  # pinned memory lets copies overlap with compute
            return {name: tensor.pin_memory().to(self.device, non_blocking=True) for name, tensor in made.items()}
        return {name: tensor.to(self.device) for name, tensor in made.items()}

    def __str__(self) -> str:
        batches = self.plan(0)
        real = int(np.asarray(self.lengths).reshape(len(self.items), -1)[:, -1].sum())
        number = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
        words = f"{number} of about {real / len(batches):,.0f} tokens"
        if self.config.pack:
            return words + f", packed in rows of {self.config.length}"
        return words + f" ({padding_share(batches, self.lengths):.0%} padding)"


AHEAD = 4  # number of prefetched batches
PATIENCE = 10.0  # seconds to wait at exit for a batch in progress


class Ahead(Iterator[Made]):
    """Endless iterator over batches, prefetched by a thread that ends with the context manager.

    `state` is the (epoch, batch) that follows the last batch taken; exact resumption starts there. The thread works
    only within `working`, so that it never runs during validation, which uses the same objective.
    """

    def __init__(self, feed: Feed, epoch: int = 0, batch: int = 0) -> None:
        self.feed, self.state, self.waited = feed, (epoch, batch), 0.0
        self._made: SimpleQueue[Made | Exception] = SimpleQueue()
        self._room, self._turn, self._ended = Semaphore(AHEAD), Lock(), False
        self._turn.acquire()
        self._device = torch.cuda.current_device() if feed.device.type == "cuda" else None
        self._thread = Thread(target=self._work, name="batches", daemon=True)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._room.release()
        with contextlib.suppress(RuntimeError):  # may have been released already, if a second Ctrl-C arrived in between
            self._turn.release()
        self._thread.join(PATIENCE)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def __next__(self) -> Made:
        """Return the next batch, or raise the error raised while preparing it. Add the waiting time to `waited`."""
        began = time.perf_counter()
        made = self._made.get()
        self.waited += time.perf_counter() - began
        if isinstance(made, Exception):
            raise made
        self._room.release()
        self.state = made.after
        return made

    def waiting(self) -> float:
        """Return the seconds waited since the last call."""
        waited, self.waited = self.waited, 0.0
        return waited

    def _work(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)
        made = self.feed.made(self.feed.order(*self.state))
        while True:
            self._room.acquire()
            with self._turn:
                if self._ended:
                    return
                try:
                    self._made.put(next(made))
                except Exception as error:
                    self._made.put(error)
                    return
