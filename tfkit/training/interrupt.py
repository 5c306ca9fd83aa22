"""Ctrl-C, SIGTERM and a closed terminal while training: the step is finished first. A second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
INSISTENT = (signal.SIGINT, signal.SIGTERM)  # a terminal that closes may send SIGHUP twice and mean it once


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside, and a checkpoint is saved; the message says how to go on."""


class Interrupts:
    """Within the block, the first signal sets `.asked` instead of stopping the program.

    A signal that the program ignores, as under nohup, stays ignored. Only the main thread gets signals: elsewhere this
    does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._taken: set[int] = set()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            heeded = [one for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN]
            self._before = {one: signal.signal(one, self._take) for one in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number in self._taken and number in INSISTENT:
            raise KeyboardInterrupt
        self._taken.add(number)
        self.asked = True
