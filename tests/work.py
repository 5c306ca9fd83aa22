"""How much a call computes, counted and not timed, so that it is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def work(function: Callable[[], Any]) -> int:
    """The number of functions that the call enters, those of its imports included."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered
