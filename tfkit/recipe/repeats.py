"""Finds what repeats in a long order of layers, so that it is written as short as it was said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, repeat
from typing import TypeVar

T = TypeVar("T")
Run = tuple[T, int]

LONG = 1_000  # runs; a shorter order is written as it is


def runs(values: Sequence[T]) -> list[Run[T]]:
    """Equal values in a row as one, each with how often it comes."""
    return [(value, len(list(group))) for value, group in groupby(values)]


def folded(values: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
    """What comes once, what is then repeated (its last turn may be cut), and what follows.

    Only in a long order: there, what repeats is taken to stand around the middle. Elsewhere all of it comes once.
    """
    found = runs(values)
    middle = len(found) // 2
    for period in range(1, middle + 1) if len(found) > LONG else ():
        if not _returns(found, middle, period):
            continue
        start, end = _stretch(found, middle, period)
        if end - start > len(found) // 2 + period:
            return _flat(found[:start]), _flat(found[start : start + period]), _flat(found[end:])
    return values, (), ()


def _returns(found: Sequence[Run[T]], middle: int, period: int) -> bool:
    """Whether what stands before the middle stands behind it again; the ends are looked at first, as copies cost."""
    few = min(period, 16)
    if found[middle - period : middle - period + few] != found[middle : middle + few]:
        return False
    return found[middle - period : middle] == found[middle : middle + period]


def _stretch(found: Sequence[Run[T]], middle: int, period: int) -> tuple[int, int]:
    """How far to both sides of the middle the runs have that period."""
    start, end = middle - period, middle + period
    while start > 0 and found[start - 1] == found[start - 1 + period]:
        start -= 1
    while end < len(found) and found[end] == found[end - period]:
        end += 1
    return start, end


def _flat(found: Sequence[Run[T]]) -> list[T]:
    return list(chain.from_iterable(repeat(value, count) for value, count in found))
