"""Ctrl-C and SIGTERM while training: the step is finished first. A second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside, and a checkpoint is saved; the message says how to go on."""


class Interrupts:
    """Within the block, the first signal sets `.asked` instead of stopping the program.

    Only the main thread gets signals: elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._take) for one in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
