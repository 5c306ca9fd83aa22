"""Writing of checkpoints in a background thread, one at a time, while training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tfkit.core.machine import free_memory
from tfkit.training.checkpoint import Checkpoints, Snapshot

SPARE = 2  # a copy may use up to 1/SPARE of the free memory


class CheckpointWriter:
    """Writer of snapshots. `done` is called in the training thread with each complete checkpoint."""

    def __init__(self, checkpoints: Checkpoints, done: Callable[[Snapshot, Path], None]) -> None:
        self.checkpoints, self.done = checkpoints, done
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._copy: Snapshot | None = None  # its memory is reused for the next copy
        self._pending: tuple[Snapshot, Future[Path]] | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Write a copy of the snapshot in the background, or the snapshot itself at once if memory is short.

        Wait for the previous checkpoint first. Raise RunError if it could not be written.
        """
        self.wait()
        free, needed = (
            free_memory(),
            sum(one.nbytes for weights in snapshot.files.values() for one in weights.tensors.values()),
        )
        if self._copy is None and free is not None and needed > free // SPARE:
            self.done(snapshot, self.checkpoints.write(snapshot))
            return
        self._copy = copy = snapshot.copied(self._copy)
        self._pending = copy, self._pool.submit(self.checkpoints.write, copy)

    def poll(self) -> None:
        """Report the pending checkpoint if it is complete. Raise RunError if it could not be written."""
        if self._pending is not None and self._pending[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the pending checkpoint. Raise RunError if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.done(pending[0], pending[1].result())

    def close(self) -> None:
        """Wait for the thread to end, ignoring errors: `wait` has raised them, or another error has ended training."""
        self._pool.shutdown()
