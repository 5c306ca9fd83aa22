"""Locks, reading of regular files, and atomic writes."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import platform
import re
import secrets
import stat
import warnings
import zlib
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any

from tfkit.core.bounds import Tree
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.core.output import json_line

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


# name of an incomplete file or folder: hidden, random, and recognizable after a crash
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
LARGEST_TEXT = 2**28  # maximum bytes of a JSON or YAML file; the tokenizer of a large vocabulary takes 2**25


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` if the block succeeds, and is removed if it fails.

    The file has a random name and is created exclusively, so that no other process can plant a link in its place. Its
    mode follows the umask. Raise RunError for system errors, and before the block runs if `path` is a folder, a device
    or a pipe.
    """
    _check_replaceable(path)
    beside = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "xb") as file:
            mark_in_use(file.fileno())
            yield beside
            os.chmod(beside, stat.S_IMODE(os.fstat(file.fileno()).st_mode))  # a library may have replaced the file
            sync(beside)
            os.replace(beside, path)
        sync(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _check_replaceable(path: Path) -> None:
    """Raise RunError if a path is not a regular file. Replacing a device would remove it from the system."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "is not a regular file")
    except (FileNotFoundError, NotADirectoryError):  # a new file, or an error that is reported when writing
        return
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise RunError(f"{path}: cannot be written: {getattr(error, 'strerror', error)}") from None


def temporary(path: Path) -> Path:
    """Return a random path next to `path`, for a file that will be renamed to it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def temporary_for(path: Path) -> str | None:
    """Return the name from which `temporary` made this path, or None."""
    match = _TEMPORARY.fullmatch(path.name)
    return None if match is None else match[1]


def is_temporary(path: Path) -> bool:
    """True if `temporary` made this path, so that it may be deleted after a crash."""
    return temporary_for(path) is not None


def damaged_name(path: Path) -> Path:
    """Return a free name to set a file or folder aside, such as metrics.jsonl.damaged or metrics.jsonl.damaged-2."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    return aside


def named(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files with these names in a folder, and their temporary files. Yield nothing for a linked folder."""
    requested = set(names)
    for path in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        if requested.intersection((path.name, temporary_for(path))) and (path.is_symlink() or not path.is_dir()):
            yield path


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove temporary files for these names that dead processes have left. Raise RunError if that fails."""
    try:
        for path in named(folder, names):
            if is_temporary(path) and not is_in_use(path):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be cleaned up: {error.filename}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write `text` atomically. Raise RunError if that fails."""
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, data: object) -> None:
    """Write `data` as JSON atomically. Raise RunError if that fails."""
    write_text(path, json_line(data, 2) + "\n")


def remove(path: Path) -> None:
    """Remove a file if it exists. Raise RunError if that fails."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be removed: {error.strerror or error}") from None


def read_bytes(path: str | Path, largest: int | None = None) -> bytes:
    """Return the content of a regular file. Raise RunError if it cannot be read.

    Pipes, devices, sockets and files with more than `largest` bytes are refused before anything is read.
    """
    with regular(path, largest) as file:
        return file.read()


def why_missing(path: str | Path, kind: str = "file") -> str:
    """Return the reason why nothing exists at `path`: no file, or a link that leads nowhere."""
    if not os.path.islink(path):
        return f"no such {kind}"
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a link that leads back to itself"
    return f"a link to a missing {kind}"


@contextlib.contextmanager
def unpacked(path: str | Path) -> Iterator[io.BufferedIOBase]:
    """Open a regular file for reading. Decompress it if its first bytes are those of gzip, whatever its name.

    Raise RunError as `read_bytes` does, and for damaged or truncated gzip data.
    """
    with regular(path) as file, io.BufferedReader(file) as raw:
        try:
            yield gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(b"\x1f\x8b") else raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise RunError(f"{path}: the gzip file is damaged or truncated: {error}") from None


@contextlib.contextmanager
def regular(path: str | Path, largest: int | None = None) -> Iterator[FileIO]:
    """Open a regular file for unbuffered reading. Raise RunError as `read_bytes` does."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RunError(f"{path}: is not a regular file")
            if largest is not None and status.st_size > largest:
                raise RunError(f"{path}: has {status.st_size:,} bytes; the maximum is {largest:,}")
            yield file
    except FileNotFoundError:
        raise RunError(f"{path}: {why_missing(path)}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if "\0" not in str(path):
            raise
        raise RunError(f"{path}: cannot be read: {error}") from None


def read_text(path: str | Path, largest: int | None = LARGEST_TEXT) -> str:
    """Return the text of a UTF-8 file. Raise RunError if it cannot be read."""
    try:
        return read_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: cannot be read: not UTF-8 at byte {error.start:,}") from None


@contextlib.contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Convert OSError to RunError with the name of the file, or of `folder` if unknown."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{error.filename or folder}: cannot be used: {error.strerror or error}") from None


def read_json(path: str | Path) -> Any:
    """Parse a JSON file. Raise RunError if it is invalid or nested too deeply."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise RunError(f"{path}: cannot be read: {why}") from None


def read_yaml(path: str | Path) -> Tree:
    """Parse a YAML file that tfkit wrote, which contains a mapping.

    Raise RunError if it is not UTF-8, not YAML, not a mapping, or nested too deeply.
    """
    import yaml  # slow to import, and most commands do not need it

    text = read_text(path)
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise RunError(f"{path}: cannot be read: {why}") from None
    if not isinstance(data, dict):
        raise RunError(f"{path}: not a mapping")
    return data


def open_log(path: Path) -> IO[str]:
    """Open a text file for appending. Raise RunError if it is a link or not a regular file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8", newline="\n")
    except OSError as error:
        why = "is a link" if path.is_symlink() else f"cannot be written: {error.strerror or error}"
        raise RunError(f"{path}: {why}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise RunError(f"{path}: is not a regular file")
    return file


def sync(path: Path) -> None:
    """Flush a file or folder to disk. Do nothing on systems that cannot sync folders."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)
