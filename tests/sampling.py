"""Many cases that fail together if they fail: some are tried in every run, the others in the slow one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

EVERY = 3


def some(cases: Iterable[Any]) -> list[Any]:
    """The cases, of which every third is quick."""
    return [
        case if number % EVERY == 0 else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases)
    ]
