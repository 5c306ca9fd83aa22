"""Claims of runs by atomic files, so that several processes, on several machines, take different runs of one folder."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

STALE = 300.0  # seconds without a sign of life after which another machine's claim is taken over
BEAT = 30.0  # seconds between two signs


@dataclass
class RunClaim:
    """A run that this process has taken; `beat` says now and then that it still works on it."""

    file: Path
    told: float

    @classmethod
    def take(cls, file: Path) -> RunClaim | None:
        """The claim, None where another living process has it."""
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
        """Say that this process still lives, when it is time."""
        if time.monotonic() - self.told > BEAT:
            self.told = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.file)

    def release(self) -> None:
        """Give the run up."""
        self.file.unlink(missing_ok=True)


def _is_stale(file: Path) -> bool:
    """Whether the process that took a claim is gone: on this machine by its id, elsewhere by its silence."""
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        host, process = holder["host"], int(holder["process"])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return _age(file) > BEAT  # its writer may be at it
    if host == platform.node():
        return not _lives(process)
    return _age(file) > STALE


def _age(file: Path) -> float:
    """Seconds since the file was last touched, by the clock of its own file system."""
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
    """Remove a stale claim; of two that find it, one renames it and the other finds nothing there."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.stale")
    os.rename(file, aside)
    aside.unlink(missing_ok=True)
