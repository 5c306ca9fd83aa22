"""Many cases that fail together if they fail: some are tried in every run, the others in the slow one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

EVERY = 3


def some(cases: Iterable[Any], every: int = EVERY) -> list[Any]:
    """The cases of one argument, of which every third is quick, or every so many."""
    return some_rows(((case,) for case in cases), every)


def some_rows(rows: Iterable[tuple[Any, ...]], every: int = EVERY) -> list[Any]:
    """The same for cases of several arguments."""
    return [pytest.param(*row, marks=[pytest.mark.slow] if number % every else []) for number, row in enumerate(rows)]
