"""Progress output: a status line on a terminal, else periodic lines. Everything is logged to train.log."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO

from tfkit.core.output import SPEECH, OutputLost, emit, event, printable
from tfkit.storage.files import open_log

LOGGER = logging.getLogger("tfkit")
SECONDS = 10.0  # maximum seconds between logged lines
STEPS = 100  # a line is also due at multiples of this step
WINDOW = 50  # number of steps over which tokens per second are averaged


class _Handler(logging.Handler):
    """Log handler that forwards to the reporter."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self.reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        self.reporter.say(record.getMessage())


class Reporter:
    """Output to the terminal (if `visible`) and to a log file. Messages before `open` are buffered for the log.

    Within the `with` block, tfkit's log records are reported too.
    """

    def __init__(self, visible: bool = True, stream: IO[str] | None = None) -> None:
        self.stream = stream or (sys.stderr if SPEECH.stderr else sys.stdout)
        self.visible = visible and self.stream is not None and not SPEECH.quiet  # a closed stream is None
        self.terminal = self.visible and self.stream.isatty() and not SPEECH.json
        self._waiting: list[str] = []
        self._log: IO[str] | None = None
        self._concludes = False
        self._on_line = 0  # length of the current status line

    def __enter__(self) -> Reporter:
        self._handler = _Handler(self)
        self._level = LOGGER.level
        LOGGER.addHandler(self._handler)
        LOGGER.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        LOGGER.removeHandler(self._handler)
        LOGGER.setLevel(self._level)
        self.close()

    def open(self, path: Path) -> None:
        """Append to the log at `path`. Raise RunError if it cannot be opened."""
        self._log = open_log(path)
        self._log.write("".join(self._waiting))
        self._log.flush()
        self._waiting.clear()

    def close(self) -> None:
        """Clear the status line and close the log."""
        self._clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def say(self, text: str, **facts: object) -> None:
        """Print and log a line. JSON lines of progress have its facts."""
        self.log(text)
        self._clear()
        line = printable(text) if self._concludes else event(text, "progress" if facts else "message", **facts)
        self._print(line + "\n")

    def conclude(self) -> None:
        """Continue with the answer of the command: on standard output, or nothing if the answer is JSON."""
        if SPEECH.stderr:
            self._clear()
            self.stream, self.terminal, self._concludes = sys.stdout, False, True
            self.visible = self.stream is not None and not SPEECH.data

    def draw(self, drawing: Callable[[IO[str]], None]) -> None:
        """Print a renderable such as a table, without logging."""
        self._clear()
        self._guarded(drawing)

    def log(self, text: str) -> None:
        """Write to train.log only."""
        stamp = datetime.now().astimezone().isoformat(timespec="seconds")
        lines = "".join(f"{stamp} {line}\n" for line in printable(text.removesuffix("\n")).split("\n"))
        if self._log is None:
            self._waiting.append(lines)
        else:
            self._log.write(lines)
            self._log.flush()

    def show(self, text: str) -> None:
        """Update the status line on a terminal."""
        if self.terminal:
            self._print("\r" + printable(text).ljust(self._on_line))
            self._on_line = len(text)

    def _clear(self) -> None:
        if self._on_line:
            self._print("\r" + " " * self._on_line + "\r")
            self._on_line = 0

    def _print(self, text: str) -> None:
        self._guarded(lambda stream: emit(text, stream))

    def _guarded(self, printing: Callable[[IO[str]], None]) -> None:
        """Print. If the stream fails (closed pipe, full disk), continue with the log only."""
        if not self.visible:
            return
        try:
            printing(self.stream)
        except OutputLost as error:
            self.visible = self.terminal = False
            self.log(f"{error}; further output goes only to this log")


class Silence(Reporter):
    """Reporter that discards everything."""

    def __init__(self) -> None:
        super().__init__(visible=False)

    def log(self, text: str) -> None:
        """Discard the line."""


class ProgressMeter:
    """Progress lines with loss, throughput and remaining time.

    If several `threads` of a CPU compute while other programs use it, a line says so once.
    """

    def __init__(self, reporter: Reporter, first: int, steps: int, threads: int = 1) -> None:
        self.reporter = reporter
        self.first, self.steps, self.threads = first, steps, threads
        self.began = self._last_logged = self._shown = time.perf_counter()
        self._read, self._seconds, self._best = 0, 0.0, 0.0  # since the last line; best rate between two lines
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=WINDOW)

    def step(self, step: int, loss: float, read: int, targets: int, seconds: float) -> None:
        """Record the tokens read and predicted in a step, and report progress if due."""
        self._recent.append((read, targets, seconds))
        self._read, self._seconds = self._read + read, self._seconds + seconds
        now = time.perf_counter()
        if self.reporter.terminal and (now - self._shown > 0.1 or step == self.steps):
            self._shown = now
            self.reporter.show(self._line(step, loss, now))
        waited = now - self._last_logged
        if step == self.first + 1 or waited >= SECONDS or (step % STEPS == 0 and waited >= 1) or step == self.steps:
            self._last_logged = now
            line, facts = self._line(step, loss, now), {"step": step, "steps": self.steps, "loss": loss}
            facts |= {"tokens_per_second": self._rate(0), "seconds_left": self._left(step, now)}
            self.reporter.log(line) if self.reporter.terminal else self.reporter.say(line, **facts)
            if self.threads > 1 and waited >= 1 and step > self.first + 1:
                self._compare(self._read / self._seconds)
            self._read, self._seconds = 0, 0.0

    def _compare(self, rate: float) -> None:
        """Report other programs if the load is high and the rate fell below a quarter of the best, or has no best."""
        load, most = 0.0, os.cpu_count() or 1
        with contextlib.suppress(AttributeError, OSError):  # not on Windows
            load = os.getloadavg()[0]
        if load > most + (0 if self._best else self.threads) and rate < (self._best / 4 or math.inf):
            fallen = f", down from {self._best:,.0f}" if self._best else ""
            cause = "other programs use the processor; OMP_NUM_THREADS=1 is often faster then"
            self.reporter.say(f"{rate:,.0f} tokens/s{fallen}: {cause}")
            self.threads = 1  # said once
        self._best = max(self._best, rate)

    def _line(self, step: int, loss: float, now: float) -> str:
        ending = f", {duration(self._left(step, now))} left" if step < self.steps else ""
        return f"step {step:,} of {self.steps:,}: loss {loss:.4f}, {self._rates()}{ending}"

    def _rates(self) -> str:
        """Format the tokens read per second, and the tokens predicted per second if they differ."""
        read, targets = self._rate(0), self._rate(1)
        rate = f"{read:,.0f} tokens/s"
        return rate if 0.9 * read < targets <= read else f"{rate} read, {targets:,.0f} predicted"

    def _rate(self, column: int) -> float:
        return sum(one[column] for one in self._recent) / sum(one[2] for one in self._recent)

    def _left(self, step: int, now: float) -> float:
        return (now - self.began) / (step - self.first) * (self.steps - step)


def duration(seconds: float) -> str:
    """Format a duration: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
