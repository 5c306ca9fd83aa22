"""What tests of recipes share."""

from __future__ import annotations

import pytest

from tfkit.core.registry import REGISTRY


@pytest.fixture
def shipped_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tfkit's own parts, so that a message that lists them does not depend on what other tests have registered."""
    for slot in ("attention", "feedforward", "mixer", "norm", "residual"):
        shipped = {name: part for name, part in REGISTRY.load(slot).items() if part.__module__.startswith("tfkit.")}
        monkeypatch.setitem(REGISTRY._parts, slot, shipped)
