"""Graceful stop after the current step on Ctrl-C, SIGTERM or SIGHUP. A second Ctrl-C stops training at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
INSISTENT = (signal.SIGINT, signal.SIGTERM)  # a closing terminal may send SIGHUP twice


class Interrupted(KeyboardInterrupt):
    """A signal stopped training, and a checkpoint was saved. The message says how to resume."""


class Interrupts:
    """Context manager in which the first signal sets `.asked` instead of ending the process.

    Signals that the process ignores (nohup) stay ignored. Outside the main thread this is a no-op.
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

    def ignore(self) -> None:
        """Ignore signals from now on, even after the block, because the process is about to exit."""
        self._before = dict.fromkeys(self._before, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number in self._taken and number in INSISTENT:
            raise KeyboardInterrupt
        self._taken.add(number)
        self.asked = True
