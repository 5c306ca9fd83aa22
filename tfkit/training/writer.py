"""Checkpoints written by a thread while training continues, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tfkit.core.machine import free_memory
from tfkit.training.checkpoint import Checkpoints, Snapshot

SPARE = 2  # a copy may take this part of the free memory


class CheckpointWriter:
    """Writer of snapshots. `done` is called in the thread of training, with each checkpoint that is whole."""

    def __init__(self, checkpoints: Checkpoints, done: Callable[[Snapshot, Path], None]) -> None:
        self.checkpoints, self.done = checkpoints, done
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._copy: Snapshot | None = None  # its memory is used again
        self._pending: tuple[Snapshot, Future[Path]] | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Write a copy of the snapshot in the thread, after the previous one; without the memory for it, write now.

        Raise RunError if the previous one could not be written.
        """
        self.wait()
        free, needed = free_memory(), sum(one.nbytes for tensors in snapshot.files() for one in tensors.values())
        if self._copy is None and free is not None and needed > free // SPARE:
            self.done(snapshot, self.checkpoints.write(snapshot))
            return
        self._copy = copy = snapshot.copied(self._copy)
        self._pending = copy, self._pool.submit(self.checkpoints.write, copy)

    def poll(self) -> None:
        """Report a checkpoint that has become whole. Raise RunError if it could not be written."""
        if self._pending is not None and self._pending[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written. Raise RunError if it could not be."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.done(pending[0], pending[1].result())

    def close(self) -> None:
        """Wait for the thread to end; errors have been raised by `wait`, or another one ends the training."""
        self._pool.shutdown()
