"""Batches made ahead of the steps by a thread: the same batches in the same order, and errors in their place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread

import torch

from tfkit.training.feed import Feed, Made

AHEAD = 4  # batches that wait for their step
PATIENCE = 10.0  # seconds for the end of a batch that is being made


class Ahead(Iterator[Made]):
    """Endless iterator over the batches of all epochs, a context manager that ends its thread.

    `state` is (epoch, batch) after the last batch taken, from which an exact resumption starts. The thread works only
    within `working`, so that it never runs next to a validation, which reads by the same objective.
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
        with contextlib.suppress(RuntimeError):  # already released, if a second Ctrl-C came in between
            self._turn.release()
        self._thread.join(PATIENCE)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let the thread work within the block."""
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def __next__(self) -> Made:
        """Return the next batch; raise what was raised as it was made. `waited` counts the seconds."""
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
