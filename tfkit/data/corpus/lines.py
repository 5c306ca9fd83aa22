"""Reads text files, with the irregularities of real ones handled in one place.

A line ends at a line feed and nowhere else (not at a form feed, U+0085 or U+2028, as `str.splitlines` has it); a
carriage return before it goes, so files that mix CRLF and LF read well; the last line may lack its end; a byte-order
mark goes.
"""

from __future__ import annotations

import os
from pathlib import Path

from tfkit.core import files
from tfkit.core.errors import DataError, RunError
from tfkit.core.memory import free_memory, gigabytes

DECODED = 3  # times the size of a file that its bytes, its text and its lines take together


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """The text of a file with line feeds only; raises DataError naming the file, and the line if it has one."""
    data = read_bytes(path)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].decode(encoding, errors="replace").count("\n") + 1
        bad = data[error.start : error.end].hex(" ")
        raise DataError(
            f"{path}:{line}: byte {bad} cannot be decoded as {encoding}; say the file's encoding (encoding: latin-1?)"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a file without their ends; raises DataError as `read_text` does."""
    lines = read_text(path, encoding).split("\n")
    last = lines.pop().removesuffix("\r")  # what follows the last line end: nothing, if that end is there
    return [*lines, last] if last else lines


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file; raises DataError when it is missing, a folder, no regular file, or larger than memory."""
    if os.path.isdir(path):
        raise DataError(f"{path}: this is a folder, a file was expected")
    free = free_memory()
    try:
        size = os.path.getsize(path)
        if free is not None and size * DECODED > free:
            raise DataError(
                f"{path}: has {gigabytes(size)}, and this machine {gigabytes(free)} of memory free, of which its "
                f"text takes {DECODED} times as much; split the file"
            )
        return files.read_bytes(path)
    except RunError as error:
        raise DataError(str(error)) from None
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: the file cannot be read: {getattr(error, 'strerror', None) or error}") from None


def same_number(first: tuple[str, list[str]], second: tuple[str, list[str]]) -> None:
    """Raise DataError when two files that belong together line by line have not the same number of lines."""
    if len(first[1]) != len(second[1]):
        raise DataError(
            f"{first[0]} has {len(first[1])} lines, {second[0]} has {len(second[1])}: they must belong together "
            "line by line"
        )
