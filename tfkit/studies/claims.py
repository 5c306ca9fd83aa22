"""Claims on runs, so that only one process trains a run, even if several machines share the study's folder.

A claim is a file that is created exclusively. It is locked as long as its process lives; on file systems that do not
share locks between machines, its time shows that the process on another machine is alive.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tfkit.core.errors import RunError
from tfkit.storage.files import read_text
from tfkit.storage.locks import FolderBusy, FolderLock, is_in_use, mark_in_use

STALE = 300.0  # seconds without a heartbeat after which another machine's claim is taken over
BEAT = 30.0  # seconds between heartbeats
CLAIMED = "claimed on "


@dataclass
class RunClaim:
    """A run claimed by this process. Call `beat` regularly."""

    path: Path
    file: IO[str]
    beat_at: float

    @classmethod
    def take(cls, path: Path) -> RunClaim | None:
        """Claim a run. Return None if another living process has claimed it, or decides on a claim right now.

        Raise RunError if `path` exists and is not a claim.
        """
        try:
            lock = FolderLock.take(path.parent, None)
        except FolderBusy:
            return None
        try:
            if is_in_use(path) or _is_alive_elsewhere(path):
                return None
            path.unlink(missing_ok=True)  # left by a dead process
            file = path.open("x", encoding="utf-8")
            mark_in_use(file.fileno())
            file.write(f"{CLAIMED}{platform.node()}\n")
            file.flush()
            return cls(path, file, time.monotonic())
        finally:
            lock.release()

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self.beat_at > BEAT:
            self.beat_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Release the claim."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.file.close()


def _is_alive_elsewhere(path: Path) -> bool:
    """True if a recent claim names another machine. Raise RunError for anything but a claim."""
    if not os.path.lexists(path):
        return False
    text = read_text(path, None) if path.is_file() and not path.is_symlink() else "not a file"
    if text and not text.startswith(CLAIMED):
        raise RunError(f"{path}: is no claim of tfkit; remove it: it has the name of a run's claim")
    return text not in ("", f"{CLAIMED}{platform.node()}\n") and time.time() - path.stat().st_mtime < STALE


def is_trained(folder: Path) -> bool:
    """True if a process is training in the run folder."""
    try:
        FolderLock.take(folder, None).release()
    except FolderBusy:
        return True
    except (FileNotFoundError, RunError):
        pass
    return False
