"""Texts from the command line or from standard input."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from tfkit.core.errors import DataError


def lines(stream: BinaryIO, name: str = "standard input") -> Iterator[str]:
    """The lines without their ends; raises DataError where one is not text."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number}: is not UTF-8 text ({error.reason})") from None


def batches(texts: Iterator[str], count: int) -> Iterator[list[str]]:
    """The texts, so many at a time."""
    while some := list(islice(texts, count)):
        yield some
