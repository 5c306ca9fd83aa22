"""Parts that are registered for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tfkit.core.component import Component
from tfkit.core.registry import REGISTRY

from .broken import Register

NUMBER = count()


@pytest.fixture
def register() -> Iterator[Register]:
    """`register(slot, part)` enters a part and gives it back; afterwards the registry is as it was."""
    entered: list[tuple[str, str]] = []

    def enter(slot: str, part: type[Component]) -> type[Component]:
        name = f"broken_{part.__name__.lower()}_{next(NUMBER)}"
        REGISTRY.register(slot, name)(part)
        entered.append((slot, name))
        return part

    yield enter
    for slot, name in entered:
        del REGISTRY.load(slot)[name]
