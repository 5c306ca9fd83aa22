"""Prefetching of batches in a background thread, without changing their order or the point where errors are raised."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread

import torch

from tfkit.training.feed import Feed, Made

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
        """Run the thread during the block."""
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
