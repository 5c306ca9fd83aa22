"""Checks examples while they are read: each is of texts, all fit into memory, and a log reports the progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfkit.core.errors import DataError
from tfkit.core.memory import free_memory, gigabytes

LOGGER = logging.getLogger("tfkit")
SECONDS = 10.0  # between two lines of the log
OFTEN, SELDOM = 1_000, 100_000  # examples after which the clock, and the memory, is looked at
SMALLEST = 250  # bytes of an example with one short text, at least
SPARED = 10  # what must stay free: one in so many of the bytes that were free at first


def watched(examples: Iterator[Mapping[str, Any]], name: str, expected: int | None) -> Iterator[dict[str, str]]:
    """The examples as they come; raises DataError for one that is not of texts, and for more than memory holds.

    `expected` is how many there will be, where that is known.
    """
    free = free_memory()
    if free is not None and expected is not None and expected * SMALLEST > free:
        raise DataError(
            f"{name}: {expected:,} examples take {gigabytes(expected * SMALLEST)} at least, and this machine has "
            f"{gigabytes(free)} free; limit takes the first so many"
        )
    told = time.monotonic()
    for number, example in enumerate(examples, start=1):
        if number % OFTEN == 0 and time.monotonic() - told > SECONDS:
            told = time.monotonic()
            LOGGER.info("%s: %s examples read%s", name, f"{number:,}", f" of {expected:,}" if expected else "")
        if number % SELDOM == 0:
            _check_memory(free, number, name)
        check_texts(example, f"{name}: example {number}")
        yield dict(example)


def check_texts(example: Mapping[str, Any], place: str) -> None:
    """Raise DataError where a field of the example is no text that can be stored."""
    for field, text in example.items():
        if not isinstance(text, str):
            raise DataError(f"{place}: {field} is no text but {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                half = f"half of a character (a lone surrogate, U+{ord(text[error.start]):04X})"
                raise DataError(f"{place}: {field} holds {half}, which is no Unicode text") from None


def _check_memory(free: int | None, number: int, name: str) -> None:
    """Raise DataError where little is left of the memory that was `free` at first."""
    left = free_memory()
    if free is not None and left is not None and left < free / SPARED:
        raise DataError(
            f"{name}: after {number:,} examples {gigabytes(left)} of memory are left; limit takes the first so many"
        )
