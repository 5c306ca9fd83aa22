"""Ranges of layers in compact form: 0-4, 6-10."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

Runs = list[tuple[int, int]]  # ascending ranges of layers: (first, last), inclusive
SHOWN_RUNS = 12
FEW_RUNS = 4  # shown in a cell of a table


def places(order: Sequence[int]) -> dict[int, Runs]:
    """Map each kind to its ranges in the layer order of a stack."""
    runs: dict[int, Runs] = {}
    first = 0
    for kind, same in groupby(order):
        after = first + sum(1 for _ in same)
        runs.setdefault(kind, []).append((first, after - 1))
        first = after
    return runs


def joined(runs: Iterable[tuple[int, int]]) -> Runs:
    """Sort ranges and merge adjacent ones."""
    merged: Runs = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def label(runs: Runs) -> str:
    """Format ranges as `layer 3` or `layers 0-4, 6-10`; a long list is truncated and followed by the total."""
    count = sum(last - first + 1 for first, last in runs)
    more = f" ({count:,} in all)" * (len(runs) > SHOWN_RUNS)
    return f"layer{'s' * (count > 1)} {numbers(runs, SHOWN_RUNS)}{more}"


def numbers(runs: Runs, most: int = FEW_RUNS) -> str:
    """Format ranges as `0-5`, or as `0, 2, 4 ...` if there are more than `most`."""
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words) if len(words) <= most else ", ".join(words[: most - 1]) + " ..."
