"""Readers of text files, tolerant of BOMs, CRLF and a missing final newline.

Only a line feed ends a line (unlike `str.splitlines`: not a form feed, U+0085 or U+2028). A carriage return before it
and a byte-order mark are removed.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import DataError, RunError
from tfkit.core.machine import free_memory, gigabytes
from tfkit.storage import files

DECODED = 3  # peak memory (bytes, text and lines together) as a multiple of the file size


@dataclass
class Beginning:
    """A limit on the bytes read per file; `is_cut` is set once a file exceeds it."""

    most: int
    is_cut: bool = False


_BEGINNING: ContextVar[Beginning | None] = ContextVar("_BEGINNING", default=None)


@contextlib.contextmanager
def beginnings(most: int) -> Iterator[Beginning]:
    """Read only the first `most` bytes of each file within the block, truncated to whole lines if possible."""
    bound = Beginning(most)
    token = _BEGINNING.set(bound)
    try:
        yield bound
    finally:
        _BEGINNING.reset(token)


def bound_of_files() -> Beginning | None:
    """Return the active limit of `beginnings`, or None."""
    return _BEGINNING.get()


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """Return the text of a file with LF line ends; raise DataError with the file, and the line if known."""
    return _read_text(path, encoding)[0]


def _read_text(path: str | Path, encoding: str) -> tuple[str, bool]:
    """Return the text of a file (or its beginning), and True if it is truncated."""
    data, is_cut = _read_bytes(path)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data) if is_cut else data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].decode(encoding, errors="replace").count("\n") + 1
        bad = data[error.start : error.end].hex(" ")
        raise DataError(
            f"{path}:{line}: byte {bad} cannot be decoded as {encoding}; set the file's encoding (encoding: latin-1?)"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if is_cut:
        text = text[: text.rfind("\n") + 1] or text
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text, is_cut


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a file without line ends; raise as `read_text` does."""
    return _lines(read_text(path, encoding))


def read_pairs(first: str | Path, second: str | Path, encoding: str = "utf-8") -> tuple[list[str], list[str]]:
    """Return the lines of two parallel files.

    Raise DataError as `read_text` does, and with both line counts if they differ.
    """
    paths = (first, second)
    texts = [_read_text(path, encoding) for path in paths]
    lines, is_cut = [_lines(text) for text, _ in texts], [cut for _, cut in texts]
    short, long = (0, 1) if len(lines[0]) <= len(lines[1]) else (1, 0)
    if len(lines[short]) != len(lines[long]) and not is_cut[short]:
        counts = [f"{'more than ' * cut}{len(part)}" for part, cut in zip(lines, is_cut, strict=True)]
        raise DataError(
            f"{first} has {counts[0]} lines, {second} has {counts[1]}; parallel files need equal numbers of lines"
        )
    least = len(lines[short])
    return lines[0][:least], lines[1][:least]


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    last = lines.pop().removesuffix("\r")  # empty if the file ends with a newline
    return [*lines, last] if last else lines


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a file; raise DataError if it is missing, not a regular file, or larger than memory."""
    return _read_bytes(path)[0]


def _read_bytes(path: str | Path) -> tuple[bytes, bool]:
    """Return the bytes of a file (or its beginning), and True if it is truncated."""
    bound = bound_of_files()
    if os.path.isdir(path):
        raise DataError(f"{path}: is a folder; expected a file")
    try:
        if bound is None:
            _check_memory(path, os.path.getsize(path))
            return files.read_bytes(path), False
        data = files.read_beginning(path, bound.most + 1)
        is_cut = len(data) > bound.most
        bound.is_cut = bound.is_cut or is_cut
        return data[: bound.most], is_cut
    except RunError as error:
        raise DataError(str(error)) from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _check_memory(path: str | Path, size: int) -> None:
    """Raise DataError if decoding the file would exceed the free memory."""
    free = free_memory()
    if free is not None and size * DECODED > free:
        raise DataError(
            f"{path}: has {gigabytes(size)}, and its text needs {DECODED} times as much memory, but only "
            f"{gigabytes(free)} are free; split the file"
        )
