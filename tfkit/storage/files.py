"""Files are read only if they are regular files, and written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any

from tfkit.core.errors import RunError
from tfkit.core.output import json_line
from tfkit.storage.locks import is_in_use, mark_in_use

# what a file or folder is called until it is complete: hidden, random, and known as ours when it is left behind
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
LARGEST_TEXT = 2**28  # bytes of a JSON or YAML file; a tokenizer of a large vocabulary takes 2**25


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which replaces `path` when the block ends well and is removed when it does not.

    Its name is random and it is created exclusively, so that nobody can prepare a link there; its mode follows the
    umask. Raises RunError for what the disk refuses, and before the block runs for a folder, a device or a pipe.
    """
    _check_replaceable(path)
    beside = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _created(beside) as mode:
            yield beside
            os.chmod(beside, mode)  # a library may have replaced the file by one of its own
            sync(beside)
            os.replace(beside, path)
        sync(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _check_replaceable(path: Path) -> None:
    """Raise RunError for a path of anything but a regular file: a device that is replaced is lost to the system."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # new, or reported when it is written
        return
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"{path}: cannot be written: {why}") from None
    if not stat.S_ISREG(mode):
        why = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "is not a regular file"
        raise RunError(f"{path}: cannot be written: {why}")


def temporary(path: Path) -> Path:
    """A name beside `path` that nobody can guess, for what will be renamed to `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def temporary_for(path: Path) -> str | None:
    """The name that `temporary` made this one for; None for any other name."""
    found = _TEMPORARY.fullmatch(path.name)
    return None if found is None else found[1]


def is_temporary(path: Path) -> bool:
    """True if `temporary` made that name, so that a leftover can be deleted."""
    return temporary_for(path) is not None


def named(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files in a folder with these names, and temporary files made for them. A link to a folder has none."""
    wanted = set(names)
    for path in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        if wanted.intersection((path.name, temporary_for(path))) and (path.is_symlink() or not path.is_dir()):
            yield path


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove the temporary files for these names that dead processes left. Raises RunError."""
    try:
        for path in named(folder, names):
            if is_temporary(path) and not is_in_use(path):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be cleaned up: {error.filename}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write `text`, whole or not at all; raises RunError."""
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all; raises RunError."""
    write_text(path, json_line(data, 2) + "\n")


def remove(path: Path) -> None:
    """Remove a file where there is one; raises RunError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be removed: {error.strerror or error}") from None


def read_bytes(path: str | Path, largest: int | None = None) -> bytes:
    """The content of a regular file; raises RunError naming the file.

    A pipe, a device or a socket is refused before anything is read from it, and so is a file of more than `largest`
    bytes.
    """
    with regular(path, largest) as file:
        return file.read()


def read_beginning(path: str | Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file; raise RunError as `read_bytes` does."""
    with regular(path) as file, io.BufferedReader(file) as buffered:
        return buffered.read(most)


@contextlib.contextmanager
def regular(path: str | Path, largest: int | None = None) -> Iterator[FileIO]:
    """A regular file, open for reading without a buffer; raises RunError as `read_bytes` does."""
    try:
        with open(_open(path), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RunError(f"{path}: is not a regular file")
            if largest is not None and status.st_size > largest:
                raise RunError(f"{path}: has {status.st_size:,} bytes; at most {largest:,} are read")
            yield file
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such file") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open(path: str | Path) -> int:
    """A handle to what is there; a pipe without a writer is not waited for."""
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:  # a path with a null character
        raise RunError(f"{path}: cannot be read: {error}") from None


def read_text(path: str | Path, largest: int | None = LARGEST_TEXT) -> str:
    """The text of a UTF-8 file; raises RunError naming the file."""
    try:
        return read_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: cannot be read: not UTF-8 at byte {error.start:,}") from None


@contextlib.contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Raise RunError naming the file for what the system refuses within the block; `folder` is where it writes."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{error.filename or folder}: cannot be used: {error.strerror or error}") from None


def read_json(path: str | Path) -> Any:
    """The data in a JSON file; raises RunError naming the file, for text nested too deeply too."""
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise RunError(f"{path}: cannot be read: nested too deeply") from None


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a YAML file that tfkit wrote.

    Raises RunError naming the file if it is no text, no YAML or no mapping, or is nested too deeply.
    """
    import yaml  # takes milliseconds, which most commands never need

    text = read_text(path)
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise RunError(f"{path}: cannot be read: {why}") from None
    if not isinstance(data, dict):
        raise RunError(f"{path}: holds no mapping")
    return data


def open_log(path: Path) -> IO[str]:
    """A text file to append to; raises RunError naming the file, also for a link and for what is no regular file."""
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
    """Wait until a file or a folder is on the disk; some systems cannot do so for a folder."""
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


@contextlib.contextmanager
def _created(path: Path) -> Iterator[int]:
    """An empty file where nothing was, not even a link, marked as in use; returns its mode, which follows the umask."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        mark_in_use(handle)
        yield stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
