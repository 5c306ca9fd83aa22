"""Times of several calls in alternating rounds, so that other load on the machine affects all of them.

Each call runs in a process of its own, and all other processes are stopped meanwhile. In a common process, the idle
threads of one library would compete with those of another, which can double a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection

import rich.console
import torch
from rich.table import Table

from tfkit.core.console import Console
from tfkit.core.errors import RunError, TfkitError, UsageError, on_one_line
from tfkit.core.machine import is_out_of_memory, machine
from tfkit.core.synonyms import nearest
from tfkit.core.trees import JsonObject

Call = Callable[[], object]
Make = Callable[[], Call | None]  # prepares a call; None if a library does not support the task
OWN = "tfkit"
PR_SET_PDEATHSIG = 1  # of Linux: the signal sent to a process when its parent ends
WIDEST = 110  # minimum table width, sufficient for six lengths and for all figures of decoding


def chosen(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return the requested names. Raise UsageError for unknown names."""
    for name in names:
        if name not in known:
            hint = nearest(name, list(known))
            suggestion = f"; did you mean '{hint}'?" if hint else ""
            raise UsageError(f"unknown {what} '{name}'; available: {', '.join(known)}{suggestion}")
    return list(names)


class MeasuredCall:
    """A process that prepares a call and measures it on request. On Linux, it is stopped in between.

    `make` must be picklable. Raise its errors, and RunError if the process ends unexpectedly.
    """

    def __init__(self, name: str, make: Make) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, make, torch.get_num_threads()), daemon=True)
        self.process.start()
        other.close()
        self.supports = bool(self._answer())

    def ask(self, question: Callable[[Call], float]) -> float:
        """Return the answer of a picklable function of the call."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # the answer is an error, too
            self.pipe.send(question)
        return self._answer()

    def end(self) -> None:
        """End the process, by a kill if it does not react to the closed pipe."""
        self.pipe.close()
        self._signal(signal.SIGCONT)
        self.process.join(2)  # an orderly end releases its semaphores, such as those of progress bars
        self.process.kill()
        self.process.join()

    def _answer(self) -> float:
        try:
            answer: float | TfkitError = self.pipe.recv()
        except (EOFError, ConnectionError):
            raise RunError(f"the process that measures {self.name} ended; there may be too little memory") from None
        if type(answer) is RunError:
            raise RunError(f"cannot measure {self.name}: {answer}")
        if isinstance(answer, TfkitError):
            raise answer
        self._signal(signal.SIGSTOP)
        return answer

    def _signal(self, number: int) -> None:
        # elsewhere than on Linux, a stopped process would remain if the parent were killed
        if sys.platform == "linux" and self.process.is_alive():
            os.kill(self.process.pid or 0, number)


def _serve(pipe: Connection, make: Make, threads: int) -> None:
    """Prepare a call and answer questions about it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even if the parent is killed and this one stopped
    torch.set_num_threads(1)  # otherwise, torch's idle threads could compete with those of an engine
    try:
        call = make()
        torch.set_num_threads(threads)
        pipe.send(call is not None)
        while True:
            pipe.send(pipe.recv()(call))
    except TfkitError as error:
        pipe.send(error)
    except (EOFError, ConnectionError):
        return  # the parent has ended
    except Exception as error:  # of another library
        kind = "out of memory" if is_out_of_memory(error) else type(error).__name__
        pipe.send(RunError(f"{kind}: {on_one_line(str(error), 300)}"))


@contextlib.contextmanager
def measured_calls(makes: Mapping[str, Make]) -> Iterator[dict[str, MeasuredCall]]:
    """Start a process for each call, and end all of them after the block."""
    started: dict[str, MeasuredCall] = {}
    with contextlib.ExitStack() as stack:
        for name, make in makes.items():
            started[name] = call = MeasuredCall(name, make)
            stack.callback(call.end)
        yield started


def alternate(calls: Mapping[str, MeasuredCall], rounds: int) -> dict[str, tuple[float, ...] | None]:
    """Return the seconds of each call by name, one per round after a warm-up round; None if it is not supported."""
    seconds: dict[str, list[float]] = {name: [] for name, call in calls.items() if call.supports}
    for number in range(rounds + 1):
        for name, times in seconds.items():
            elapsed = calls[name].ask(timed)
            if number:
                times.append(elapsed)
    return {name: tuple(seconds[name]) if name in seconds else None for name in calls}


def compared(seconds: Sequence[float] | None, own: Sequence[float]) -> JsonObject:
    """Return the median of the seconds, and the median and range of their ratios to tfkit's in the same round."""
    if seconds is None:
        return {"seconds": None, "ratio": None, "ratios": None}
    ratios = sorted(one / other for one, other in zip(seconds, own, strict=True))
    return {
        "seconds": statistics.median(seconds),
        "ratio": statistics.median(ratios),
        "ratios": [ratios[0], ratios[-1]],
    }


def cpu_threads() -> str:
    """Describe the CPU threads of this process."""
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{torch.get_num_threads()} CPU threads of {machine()['processor']} ({instructions})"


def print_table(rows: Sequence[JsonObject], texts: Mapping[str, str], figures: Mapping[str, str]) -> None:
    """Print rows of `compared`.

    `texts` maps a column title to a key, `figures` maps a title to a format string for the row.
    """
    table = Table(box=None, pad_edge=False)
    for title in texts:
        table.add_column(title, no_wrap=True)
    for title in (*figures, "x tfkit", "range"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row[key]) for key in texts.values()]
        if row["ratio"] is None:
            table.add_row(*cells, *["-"] * (len(figures) + 2))
            continue
        least, most = row["ratios"]
        values = [form.format(**row) for form in figures.values()]
        table.add_row(*cells, *values, f"{row['ratio']:.2f}x", f"{least:.2f}-{most:.2f}")
    print_wide(table, Console())


def print_wide(table: Table, console: rich.console.Console) -> None:
    """Print a table that may exceed the width of the console, where it is wrapped rather than truncated."""
    width, console.width = console.width, max(console.width, WIDEST)
    console.print(table)
    console.width = width


def timed(call: Call) -> float:
    """Time a call after another one that is not timed, as the first one after a stop is slower."""
    call()
    _wait()
    start = time.perf_counter()
    call()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
