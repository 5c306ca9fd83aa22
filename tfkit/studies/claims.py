"""Locks of runs by atomic files, so that processes on several machines can share one folder."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

STALE = 300.0  # seconds without a heartbeat after which another machine's claim is taken over
BEAT = 30.0  # seconds between heartbeats


@dataclass
class RunClaim:
    """A run claimed by this process; `beat` sends a heartbeat."""

    file: Path
    told: float

    @classmethod
    def take(cls, file: Path) -> RunClaim | None:
        """Claim the run; None if another living process has claimed it."""
        for _ in range(2):
            try:
                handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                if not _is_stale(file):
                    return None
                with contextlib.suppress(FileNotFoundError):
                    _set_aside(file)
                continue
            with open(handle, "w", encoding="utf-8") as written:
                json.dump({"host": platform.node(), "process": os.getpid()}, written)
            return cls(file, time.monotonic())
        return None

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self.told > BEAT:
            self.told = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.file)

    def release(self) -> None:
        """Release the run."""
        self.file.unlink(missing_ok=True)


def _is_stale(file: Path) -> bool:
    """True if the claiming process is gone: by its id on this machine, else by missing heartbeats."""
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        host, process = holder["host"], int(holder["process"])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return _age(file) > BEAT  # it may be being written
    if host == platform.node():
        return not _lives(process)
    return _age(file) > STALE


def _age(file: Path) -> float:
    """Age of the file in seconds, by the clock of its file system."""
    now = file.with_name(f".{file.name}.{os.getpid()}.now")
    try:
        now.touch()
        return now.stat().st_mtime - file.stat().st_mtime
    except OSError:
        return 0.0
    finally:
        now.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _set_aside(file: Path) -> None:
    """Remove a stale claim by renaming it, so that only one process succeeds."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.stale")
    os.rename(file, aside)
    aside.unlink(missing_ok=True)
