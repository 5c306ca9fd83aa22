"""Correlation coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfkit.core.errors import UsageError

Floats = np.ndarray[Any, np.dtype[np.float64]]
SAMPLES = (("0.5", "-2", "3"), ("1", "3", "-1e1"))


def numbers(texts: Sequence[str], metric: str) -> Floats:
    """Texts as numbers; raises UsageError for one that is none."""
    values = np.asarray([_number(text, metric) for text in texts], dtype=np.float64)
    return values


def correlation(one: Floats, other: Floats) -> float:
    """Pearson's r in percent; 0 where one side does not vary, so that it is undefined."""
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return 100.0 * float(np.clip((one * other).sum() / size, -1, 1)) if size else 0.0


def ranks(values: Floats) -> Floats:
    """The place of each value in their order, from 1; equal values share the mean of their places."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[place]
    return shared


def _number(text: str, metric: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UsageError(f"{metric} compares numbers, got '{text[:40]}'")
    return value
