"""Checks while examples are read (field types, free memory), and progress in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfkit.core.errors import DataError
from tfkit.core.machine import free_memory, readable_bytes

LOGGER = logging.getLogger("tfkit")
SECONDS = 10.0  # seconds between log lines
OFTEN, SELDOM = 1_000, 100_000  # number of examples between checks of the clock, and between checks of the memory
SMALLEST = 250  # bytes; lower bound for an example with one short text
SPARED = 10  # reading stops if less than 1/SPARED of the initially free memory is left


def watched(examples: Iterator[Mapping[str, Any]], name: str, expected: int | None) -> Iterator[dict[str, str]]:
    """Yield the examples. Raise DataError if a field is not text, or if memory is about to run out.

    `expected` is the number of examples, or None if unknown.
    """
    free = free_memory()
    if free is not None and expected is not None and expected * SMALLEST > free:
        raise DataError(
            f"{name}: {expected:,} examples need at least {readable_bytes(expected * SMALLEST)}, but only "
            f"{readable_bytes(free)} are free; set limit to use fewer"
        )
    logged = time.monotonic()
    for number, example in enumerate(examples, start=1):
        if number % OFTEN == 0 and time.monotonic() - logged > SECONDS:
            logged = time.monotonic()
            LOGGER.info("%s: %s examples read%s", name, f"{number:,}", f" of {expected:,}" if expected else "")
        if number % SELDOM == 0:
            _check_memory(free, number, name)
        check_texts(example, f"{name}: example {number}")
        yield dict(example)


def check_texts(example: Mapping[str, Any], place: str) -> None:
    """Raise DataError if a field is not a string, or cannot be encoded as UTF-8."""
    for field, text in example.items():
        if not isinstance(text, str):
            raise DataError(f"{place}: {field} must be a string, got {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                half = f"a lone surrogate (half of a character, U+{ord(text[error.start]):04X})"
                raise DataError(f"{place}: {field} contains {half} and is not valid Unicode") from None


def _check_memory(free: int | None, number: int, name: str) -> None:
    """Raise DataError if little memory is left of the `free` bytes measured at the start."""
    left = free_memory()
    if free is not None and left is not None and left < free / SPARED:
        raise DataError(
            f"{name}: after {number:,} examples, only {readable_bytes(left)} of memory are left; set limit to use fewer"
        )
