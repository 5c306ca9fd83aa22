"""Claims on runs, so that only one process trains a run, even if several machines share the study's folder.

A claim is a locked folder; its lock is released when the process ends. On file systems that do not share locks between
machines, a heartbeat shows that the process on another machine is alive.
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
    """A run claimed by this process. Call `beat` regularly."""

    folder: Path
    lock: FolderLock
    beat_at: float

    @classmethod
    def take(cls, folder: Path) -> RunClaim | None:
        """Claim a run. Return None if another living process has claimed it.

        Raise RunError if `folder` exists and is not a folder.
        """
        try:
            folder.mkdir(exist_ok=True)
            lock = FolderLock.take(folder, None)
        except (FolderBusy, FileNotFoundError):  # its holder is removing it right now
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
        """Release the claim."""
        self.lock.release()
        with contextlib.suppress(OSError):  # claimed by another process meanwhile
            self.folder.rmdir()


def is_trained(folder: Path) -> bool:
    """True if a process on this machine, or a live one on another machine, is training in the run folder."""
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
    """True if the lock names a process on another machine and a file in the folder was written recently.

    File ages are measured with the clock of the file system.
    """
    if not is_held_elsewhere(folder):
        return False
    now = folder.with_name(f".{folder.name}.{os.getpid()}.now")
    try:
        now.touch()
        newest = max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
        return now.stat().st_mtime - newest < STALE
    except FileNotFoundError:  # its holder is removing it right now
        return True
    finally:
        now.unlink(missing_ok=True)
