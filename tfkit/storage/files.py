"""Reading of regular files, and atomic writes."""

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
from tfkit.core.trees import Tree
from tfkit.storage.locks import is_in_use, mark_in_use

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


def read_beginning(path: str | Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file. Raise RunError as `read_bytes` does."""
    with regular(path) as file, io.BufferedReader(file) as buffered:
        return buffered.read(most)


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
