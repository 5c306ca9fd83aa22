"""One writer a folder: a lock that belongs to the folder, wherever it is renamed to, and that ends with its process."""

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
except ImportError:  # Windows, which has no lock of this kind
    _fcntl: Any = None
else:
    _fcntl = fcntl

NAME = ".lock"
LEFT = "moved_aside"  # content of a lock that marks a folder and is held by nobody
_HOLDER = re.compile(r"(\d{1,20}) ([\w.-]{1,100}) (\w{1,20})\n", re.ASCII)  # process, machine, what it does
_LARGEST = 200  # bytes of a lock's file
_TRIES = 100
_held: set[FolderLock] = set()


class FolderBusy(RunError):
    """Another process or thread is writing to that folder."""


class FolderLock:
    """Held by one writer of a folder at a time, of all processes and threads."""

    def __init__(self, folder: int, file: int) -> None:
        self._folder, self._file = folder, file
        self._content: str | None = None

    @classmethod
    def take(cls, folder: Path, doing: str | None) -> FolderLock:
        """Lock an existing folder; `doing` is what for ("trained"), None leaves the content of the lock, and its file.

        The lock of a dead process is taken over. Raises FolderBusy where somebody holds it, RunError where the folder
        cannot be locked, FileNotFoundError where there is none.
        """
        if _fcntl is None:
            return _NoLock(folder, doing)
        for _ in range(_TRIES):
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock = None
            try:
                lock = cls._opened(folder, place)
                if lock._hold(folder):
                    if doing is not None:
                        lock.say(doing)
                    _held.add(lock)
                    return lock
            except FileNotFoundError:
                pass  # somebody removes the folder now: the next try tells
            except OSError as error:
                raise RunError(f"{folder}: cannot be written: {error.strerror or error}") from None
            finally:
                if lock not in _held:
                    os.close(place) if lock is None else lock._close()
        raise RunError(f"{folder / NAME}: is replaced again and again by others")

    @classmethod
    def _opened(cls, folder: Path, place: int) -> FolderLock:
        """The lock of the folder that is open as `place`, not held yet; raises OSError, and RunError for a link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return cls(place, os.open(NAME, flags, 0o666, dir_fd=place))
        except OSError:
            if os.path.lexists(folder / NAME) and not stat.S_ISREG(os.lstat(folder / NAME).st_mode):
                raise _strange(folder) from None
            raise

    def _hold(self, folder: Path) -> bool:
        """Take the lock; returns False where another file or folder has that name by now."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_size > _LARGEST:
            raise _strange(folder)
        try:
            _fcntl.flock(self._file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderBusy(f"{folder}: is being {_described(self._holder())}") from None
        except OSError as error:  # a file system without locks
            _warn(folder, error.strerror or str(error))
        if not (self._is_there() and os.path.samestat(os.stat(folder), os.fstat(self._folder))):
            return False
        if os.fstat(self._file).st_size and self._holder() is None:
            raise _strange(folder)
        return True

    def say(self, doing: str) -> None:
        """Write down who holds the lock, and what for."""
        _write(self._file, doing)
        self._content = doing

    def moved(self, folder: Path) -> None:
        """Take note that the folder was renamed."""

    def release(self) -> None:
        """Release the lock; its file is removed, unless `let_lock_say` wrote something into it that must stay."""
        if self in _held:
            with contextlib.suppress(OSError):
                holder = self._holder()
                if self._is_there() and (holder is None or holder[3] == self._content):
                    os.unlink(NAME, dir_fd=self._folder)
            _held.remove(self)
            self._close()

    def _close(self) -> None:
        os.close(self._file)
        os.close(self._folder)

    def _is_there(self) -> bool:
        """True if the locked file is the one at that name."""
        try:
            now = os.stat(NAME, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(self._file))

    def _holder(self) -> re.Match[str] | None:
        return _HOLDER.fullmatch(os.pread(self._file, _LARGEST, 0).decode("ascii", errors="replace"))


class _NoLock(FolderLock):
    """Substitute for a lock on a system without locks: the file names the holder and keeps nobody out."""

    def __init__(self, folder: Path, doing: str | None) -> None:
        self._path = folder / NAME
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        _warn(folder, "this system has no such locks")
        self._content = None
        if doing is not None:
            self.say(doing)

    def say(self, doing: str) -> None:
        try:
            self._path.write_bytes(_line(doing))
            self._content = doing
        except OSError as error:
            raise RunError(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def moved(self, folder: Path) -> None:
        self._path = folder / NAME

    def release(self) -> None:
        with contextlib.suppress(OSError):
            if lock_says(self._path.parent) in (self._content, None):
                self._path.unlink(missing_ok=True)


def lock_says(folder: Path) -> str | None:
    """Return what the last holder of a folder's lock did there; None without a lock or an entry."""
    found = _last_holder(folder)
    return None if found is None else found[3]


def held_by(folder: Path) -> str | None:
    """Describe the holder of a folder's lock; None if this machine knows of none.

    Nothing is locked to find out, so that nobody is kept out for it.
    """
    found = _last_holder(folder)
    return _described(found) if found is not None and found[3] != LEFT and _is_alive(found) else None


def is_held_elsewhere(folder: Path) -> bool:
    """True if a folder's lock names a process that locks cannot be relied on for: one of another machine.

    On a system without locks, any other living process is.
    """
    found = _last_holder(folder)
    if found is None or found[3] == LEFT:
        return False
    return found[2] != _machine() or (_fcntl is None and int(found[1]) != os.getpid() and _is_alive(found))


def _last_holder(folder: Path) -> re.Match[str] | None:
    """Return the entry of a folder's lock; None without a lock or an entry."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(folder / NAME, flags), "rb") as file:
            return _HOLDER.fullmatch(file.read(_LARGEST).decode("ascii", errors="replace"))
    except OSError:
        return None


def _is_alive(holder: re.Match[str]) -> bool:
    """True if the process named in a lock is running; a process of another machine is assumed to."""
    if holder[2] != _machine():
        return True
    try:
        os.kill(int(holder[1]), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def let_lock_say(folder: Path, doing: str) -> None:
    """Write into a folder's lock what is done there, whoever holds it; raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(folder / NAME, flags, 0o666), "wb") as file:
        _write(file.fileno(), doing)


def mark_in_use(handle: int) -> None:
    """Mark an open file as in use until it is closed, where the file system has locks."""
    with contextlib.suppress(OSError):
        if _fcntl is not None:
            _fcntl.flock(handle, _fcntl.LOCK_EX | _fcntl.LOCK_NB)


def is_in_use(path: Path) -> bool:
    """True if a living process marked the file; False for anything but a readable regular file."""
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


def _write(file: int, doing: str) -> None:
    line = _line(doing)
    if os.fstat(file).st_size > len(line):
        os.ftruncate(file, 0)
    os.pwrite(file, line, 0)  # a longer word replaces a shorter one in one step


def _line(doing: str) -> bytes:
    return f"{os.getpid()} {_machine()} {doing}\n".encode("ascii")


def _machine() -> str:
    return re.sub(r"[^\w.-]", "-", platform.node(), flags=re.ASCII)[:100] or "unknown"


def _described(holder: re.Match[str] | None) -> str:
    if holder is None:
        return "written by another process"
    elsewhere = "" if holder[2] == _machine() else f" on {holder[2]}"
    return f"{holder[3]} by process {holder[1]}{elsewhere}"


def _warn(folder: Path, why: str) -> None:
    warnings.warn(f"{folder}: cannot be locked ({why}); let no other process write there", TfkitWarning, stacklevel=4)


def _strange(folder: Path) -> RunError:
    return RunError(f"{folder / NAME}: is no lock of tfkit's; remove it, or choose another folder")


def _let_go() -> None:
    """A forked child holds no lock: it would keep the folder locked after its parent has ended."""
    for lock in _held:
        lock._close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
