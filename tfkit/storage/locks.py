"""Folder locks: one writer per folder. A lock follows a renamed folder and ends with its process."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import stat
import warnings
from pathlib import Path

from tfkit.core.errors import RunError, TfkitWarning

# filelock is imported where it is used: it is slow to import, and most commands lock nothing

NAME = ".lock"
LEFT = "moved_aside"  # purpose in a lock that nobody holds, to mark the folder
_HOLDER = re.compile(r"(\d{1,20}) ([\w.-]{1,100}) (\w{1,20})\n", re.ASCII)  # process, machine, purpose
_LARGEST = 200  # maximum bytes of a lock file
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)  # raised by some network file systems
_WAIT = 0.05  # seconds to retry, because the lock file may be removed after it was opened
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class FolderBusy(RunError):
    """The folder is in use by another process or thread."""


class FolderLock:
    """Lock of a folder, exclusive across processes and threads."""

    def __init__(self, folder: Path) -> None:
        from filelock import FileLock

        self._folder, self._purpose, self._process = folder, "", os.getpid()
        self._file: os.stat_result | None = None  # while the lock is held
        self._lock = FileLock(folder / NAME, _WAIT, thread_local=False, fallback_to_soft=False, poll_interval=_WAIT / 5)

    @classmethod
    def take(cls, folder: Path, purpose: str | None) -> FolderLock:
        """Lock an existing folder for a purpose, such as "trained". If it is None, the lock file is not changed.

        The lock of a dead process is taken over. Raise FolderBusy if the lock is held, RunError if the folder cannot
        be locked, and FileNotFoundError if it does not exist.
        """
        os.stat(folder)  # filelock would create it
        lock = cls(folder)
        try:
            _check_own(folder)
            lock._acquire()
            lock._file = os.stat(folder / NAME, follow_symlinks=False)
            if purpose is not None:
                lock.set_purpose(purpose)
        except OSError as error:
            lock.release()
            if isinstance(error, FileNotFoundError):
                raise
            raise RunError(f"{folder}: cannot be written: {error.strerror or error}") from None
        return lock

    def _acquire(self) -> None:
        from filelock import Timeout

        try:
            if os.name == "nt":
                raise OSError(errno.ENOSYS, "the system does not rename locked folders")
            self._lock.acquire()
        except Timeout:
            raise FolderBusy(f"{self._folder}: is being {_described(_last_holder(self._folder))}") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            text = f"cannot be locked ({error.strerror}); make sure no other process writes there"
            warnings.warn(f"{self._folder}: {text}", TfkitWarning, stacklevel=4)
            (self._folder / NAME).touch()

    def set_purpose(self, purpose: str) -> None:
        """Write this process and the purpose to the lock file."""
        mark_lock(self._folder, purpose)
        self._purpose = purpose

    def moved(self, folder: Path) -> None:
        """Follow a rename of the folder."""
        self._folder = folder

    def release(self) -> None:
        """Release the lock. The lock file is removed, unless `mark_lock` has marked the folder."""
        if self._process != os.getpid():  # inherited by a forked child
            return
        with contextlib.suppress(OSError):
            is_current = self._file is not None and os.path.samestat(os.lstat(self._folder / NAME), self._file)
            if is_current and (lock_purpose(self._folder) or "") == self._purpose:
                os.unlink(self._folder / NAME)
        self._file = None
        self._lock.release(force=True)


def lock_purpose(folder: Path) -> str | None:
    """Return the purpose in a folder's lock, or None."""
    holder = _last_holder(folder)
    return None if holder is None else holder[3]


def held_by(folder: Path) -> str | None:
    """Describe the holder of a folder's lock, or return None if it is not held.

    The lock is not taken for this, so that other processes are not blocked.
    """
    holder = _last_holder(folder)
    return _described(holder) if holder is not None and holder[3] != LEFT and _is_alive(holder) else None


def mark_lock(folder: Path, purpose: str) -> None:
    """Write a purpose to a folder's lock file, even if it is not held here. Raise OSError if that fails."""
    line = f"{os.getpid()} {_machine()} {purpose}\n".encode("ascii")
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(folder / NAME, flags, 0o666), "wb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > len(line):
            os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), line, 0)  # overwriting a shorter line is atomic


def mark_in_use(handle: int) -> None:
    """Mark an open file as in use until it is closed, if the file system supports locks."""
    from filelock import lock_descriptor

    with contextlib.suppress(OSError):
        lock_descriptor(handle, blocking=False)


def is_in_use(path: Path) -> bool:
    """True if a living process has marked the file. False if it is not a readable regular file."""
    from filelock import lock_descriptor

    try:
        with open(os.open(path, _READING), "rb") as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return is_file and not lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return False


def _content(folder: Path) -> str:
    try:
        with open(os.open(folder / NAME, _READING), "rb") as file:
            return file.read(_LARGEST + 1).decode("ascii", errors="replace")
    except OSError:
        return ""


def _last_holder(folder: Path) -> re.Match[str] | None:
    """Parse the lock file of a folder, or return None."""
    return _HOLDER.fullmatch(_content(folder))


def _is_alive(holder: re.Match[str]) -> bool:
    """True if the process named in a lock is running, or if it is on another machine."""
    try:
        if holder[2] == _machine():
            os.kill(int(holder[1]), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _machine() -> str:
    return re.sub(r"[^\w.-]", "-", platform.node(), flags=re.ASCII)[:100] or "unknown"


def _described(holder: re.Match[str] | None) -> str:
    if holder is None:
        return "written by another process"
    elsewhere = "" if holder[2] == _machine() else f" on {holder[2]}"
    return f"{holder[3]} by process {holder[1]}{elsewhere}"


def _check_own(folder: Path) -> None:
    """Raise RunError if the lock file was not written by tfkit. It is empty if its process was killed."""
    try:
        status = os.lstat(folder / NAME)
    except FileNotFoundError:
        return
    content = _content(folder)
    is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and (not content or _HOLDER.fullmatch(content))
    if not is_own:
        raise RunError(f"{folder / NAME}: not a tfkit lock; remove it, or choose another folder")
