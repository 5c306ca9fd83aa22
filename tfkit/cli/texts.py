"""Texts from the command line, from a file or from standard input."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from tfkit.core.errors import DataError

LONGEST = 2**24  # bytes of a line, so that an endless one is told before the memory is full


def lines(stream: BinaryIO, name: str = "standard input") -> Iterator[str]:
    """The lines without their ends; raises DataError where one is not text, or endless."""
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
        if len(line) > LONGEST:
            raise DataError(f"{name}, line {number}: is longer than {LONGEST:,} bytes")
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number}: is not UTF-8 text ({error.reason})") from None


def file_lines(path: str) -> Iterator[str]:
    """The lines of a regular file; raises DataError as `lines` does, RunError for what is no such file."""
    from tfkit.core.files import read_bytes

    yield from lines(io.BytesIO(read_bytes(path)), path)


def batches(texts: Iterator[str], count: int) -> Iterator[list[str]]:
    """The texts, so many at a time."""
    while some := list(islice(texts, count)):
        yield some
