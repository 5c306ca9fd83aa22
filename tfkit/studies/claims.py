"""Claims of runs: one process trains a run, also if several machines share the study's folder.

A claim is a folder with the lock of a run folder, which ends with its process. Where a file system does not share
locks between machines, a heartbeat shows that the other machine's process is alive.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.storage.locks import NAME, FolderBusy, FolderLock, is_held_elsewhere

STALE = 300.0  # seconds without a heartbeat after which another machine's claim is taken over
BEAT = 30.0  # seconds between heartbeats


@dataclass
class RunClaim:
    """Run claimed by this process; `beat` sends a heartbeat."""

    folder: Path
    lock: FolderLock
    beat_at: float

    @classmethod
    def take(cls, folder: Path) -> RunClaim | None:
        """Claim the run; None if another living process has claimed it.

        Raise RunError if something else has the name of the claim.
        """
        try:
            folder.mkdir(exist_ok=True)
            lock = FolderLock.take(folder, None)
        except (FolderBusy, FileNotFoundError):  # its holder is just removing it
            return None
        except FileExistsError:
            raise RunError(f"{folder}: is not a folder; remove it: it has the name of a run's claim") from None
        if _is_alive_elsewhere(folder):
            lock.release()
            return None
        lock.set_purpose("claimed")
        return cls(folder, lock, time.monotonic())

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self.beat_at > BEAT:
            self.beat_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.folder / NAME)

    def release(self) -> None:
        """Release the run."""
        self.lock.release()
        with contextlib.suppress(OSError):  # claimed by another process meanwhile
            self.folder.rmdir()


def is_trained(folder: Path) -> bool:
    """True if a process trains in a run's folder, on this machine or, by its lock and files, on another."""
    try:
        lock = FolderLock.take(folder, None)
    except FolderBusy:
        return True
    except (FileNotFoundError, RunError):
        return False
    try:
        return _is_alive_elsewhere(folder)
    finally:
        lock.release()


def _is_alive_elsewhere(folder: Path) -> bool:
    """True if a lock that is free here names a process of another machine that wrote recently.

    The age of the files is measured by the clock of their file system.
    """
    if not is_held_elsewhere(folder):
        return False
    now = folder.with_name(f".{folder.name}.{os.getpid()}.now")
    try:
        now.touch()
        newest = max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
        return now.stat().st_mtime - newest < STALE
    except FileNotFoundError:  # its holder is just removing it
        return True
    finally:
        now.unlink(missing_ok=True)
