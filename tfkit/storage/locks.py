"""Folder locks: one writer per folder. A lock follows a renamed folder and ends with its process."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import warnings
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError, TfkitWarning

try:
    import fcntl
except ImportError:  # Windows has no flock
    _fcntl: Any = None
else:
    _fcntl = fcntl

NAME = ".lock"
LEFT = "moved_aside"  # purpose in a lock that nobody holds, to mark the folder
_HOLDER = re.compile(r"(\d{1,20}) ([\w.-]{1,100}) (\w{1,20})\n", re.ASCII)  # process, machine, purpose
_LARGEST = 200  # maximum bytes of a lock file
_TRIES = 100
_held: set[FolderLock] = set()


class FolderBusy(RunError):
    """The folder is in use by another process or thread."""


class FolderLock:
    """Lock of a folder, exclusive across processes and threads."""

    def __init__(self, folder: int, file: int) -> None:
        self._folder, self._file = folder, file
        self._content: str | None = None

    @classmethod
    def take(cls, folder: Path, purpose: str | None) -> FolderLock:
        """Lock an existing folder for a purpose, such as "trained". If it is None, the lock file is not changed.

        The lock of a dead process is taken over. Raise FolderBusy if the lock is held, RunError if the folder cannot
        be locked, and FileNotFoundError if it does not exist.
        """
        if _fcntl is None:
            return _NoLock(folder, purpose)
        for _ in range(_TRIES):
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock = None
            try:
                lock = cls._opened(folder, place)
                if lock._hold(folder):
                    if purpose is not None:
                        lock.set_purpose(purpose)
                    _held.add(lock)
                    return lock
            except FileNotFoundError:
                pass  # the folder is being removed: retry
            except OSError as error:
                raise RunError(f"{folder}: cannot be written: {error.strerror or error}") from None
            finally:
                if lock not in _held:
                    os.close(place) if lock is None else lock._close()
        raise RunError(f"{folder / NAME}: other processes keep replacing it")

    @classmethod
    def _opened(cls, folder: Path, place: int) -> FolderLock:
        """Open the lock file in the folder with descriptor `place`. Raise OSError, or RunError for a link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return cls(place, os.open(NAME, flags, 0o666, dir_fd=place))
        except OSError:
            if os.path.lexists(folder / NAME) and not stat.S_ISREG(os.lstat(folder / NAME).st_mode):
                raise _foreign(folder) from None
            raise

    def _hold(self, folder: Path) -> bool:
        """Take the lock. Return False if the file or folder has been replaced in the meantime."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_size > _LARGEST:
            raise _foreign(folder)
        try:
            _fcntl.flock(self._file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderBusy(f"{folder}: is being {_described(self._holder())}") from None
        except OSError as error:  # a file system without locks
            _warn(folder, error.strerror or str(error))
        if not (self._is_current() and os.path.samestat(os.stat(folder), os.fstat(self._folder))):
            return False
        if os.fstat(self._file).st_size and self._holder() is None:
            raise _foreign(folder)
        return True

    def set_purpose(self, purpose: str) -> None:
        """Write this process and the purpose to the lock file."""
        _write(self._file, purpose)
        self._content = purpose

    def moved(self, folder: Path) -> None:
        """Follow a rename of the folder."""

    def release(self) -> None:
        """Release the lock. The lock file is removed, unless `mark_lock` has marked the folder."""
        if self in _held:
            with contextlib.suppress(OSError):
                holder = self._holder()
                if self._is_current() and (holder is None or holder[3] == self._content):
                    os.unlink(NAME, dir_fd=self._folder)
            _held.remove(self)
            self._close()

    def _close(self) -> None:
        os.close(self._file)
        os.close(self._folder)

    def _is_current(self) -> bool:
        """True if the locked file still has its name."""
        try:
            now = os.stat(NAME, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(self._file))

    def _holder(self) -> re.Match[str] | None:
        return _HOLDER.fullmatch(os.pread(self._file, _LARGEST, 0).decode("ascii", errors="replace"))


class _NoLock(FolderLock):
    """Substitute on systems without locks: the file names the holder, but does not exclude other processes."""

    def __init__(self, folder: Path, purpose: str | None) -> None:
        self._path = folder / NAME
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        _warn(folder, "the system does not support locks")
        self._content = None
        if purpose is not None:
            self.set_purpose(purpose)

    def set_purpose(self, purpose: str) -> None:
        try:
            self._path.write_bytes(_line(purpose))
            self._content = purpose
        except OSError as error:
            raise RunError(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def moved(self, folder: Path) -> None:
        self._path = folder / NAME

    def release(self) -> None:
        with contextlib.suppress(OSError):
            if lock_purpose(self._path.parent) in (self._content, None):
                self._path.unlink(missing_ok=True)


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


def is_held_elsewhere(folder: Path) -> bool:
    """True if the lock names a process on another machine, because locks across machines are unreliable.

    On a system without locks, also True for any other living process.
    """
    holder = _last_holder(folder)
    if holder is None or holder[3] == LEFT:
        return False
    return holder[2] != _machine() or (_fcntl is None and int(holder[1]) != os.getpid() and _is_alive(holder))


def _last_holder(folder: Path) -> re.Match[str] | None:
    """Parse the lock file of a folder, or return None."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(folder / NAME, flags), "rb") as file:
            return _HOLDER.fullmatch(file.read(_LARGEST).decode("ascii", errors="replace"))
    except OSError:
        return None


def _is_alive(holder: re.Match[str]) -> bool:
    """True if the process named in a lock is running, or if it is on another machine."""
    if holder[2] != _machine():
        return True
    try:
        os.kill(int(holder[1]), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def mark_lock(folder: Path, purpose: str) -> None:
    """Write a purpose to a folder's lock file, even if it is not held here. Raise OSError if that fails."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(folder / NAME, flags, 0o666), "wb") as file:
        _write(file.fileno(), purpose)


def mark_in_use(handle: int) -> None:
    """Mark an open file as in use until it is closed, if the file system supports locks."""
    with contextlib.suppress(OSError):
        if _fcntl is not None:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)


def is_in_use(path: Path) -> bool:
    """True if a living process has marked the file. False if it is not a readable regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            if _fcntl is not None and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _write(file: int, purpose: str) -> None:
    line = _line(purpose)
    if os.fstat(file).st_size > len(line):
        os.ftruncate(file, 0)
    os.pwrite(file, line, 0)  # overwriting a shorter line is atomic


def _line(purpose: str) -> bytes:
    return f"{os.getpid()} {_machine()} {purpose}\n".encode("ascii")


def _machine() -> str:
    return re.sub(r"[^\w.-]", "-", platform.node(), flags=re.ASCII)[:100] or "unknown"


def _described(holder: re.Match[str] | None) -> str:
    if holder is None:
        return "written by another process"
    elsewhere = "" if holder[2] == _machine() else f" on {holder[2]}"
    return f"{holder[3]} by process {holder[1]}{elsewhere}"


def _warn(folder: Path, why: str) -> None:
    warnings.warn(
        f"{folder}: cannot be locked ({why}); make sure no other process writes there", TfkitWarning, stacklevel=4
    )


def _foreign(folder: Path) -> RunError:
    return RunError(f"{folder / NAME}: not a tfkit lock; remove it, or choose another folder")


def _drop_inherited() -> None:
    """Close inherited locks in a forked child, where they would outlive the parent."""
    for lock in _held:
        lock._close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
