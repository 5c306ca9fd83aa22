"""How much a call computes, counted and not timed, so that it is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tfkit


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


def entered(function: Callable[[], Any]) -> set[tuple[str, int, str]]:
    """The functions of tfkit that the call enters: file, first line and name of each."""
    found: set[tuple[str, int, str]] = set()
    package = str(Path(tfkit.__file__).parent)

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            found.add((code.co_filename, code.co_firstlineno, code.co_name))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found
