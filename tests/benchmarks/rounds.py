"""Times of several calls in alternating rounds, so that other load on the machine affects all of them.

Each call runs in a process of its own, and all other processes are stopped meanwhile. In a common process, the idle
threads of one library would compete with those of another, which can double a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from rich.table import Table

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import RunError, TfkitError, UsageError, on_one_line
from tfkit.core.figures import Console
from tfkit.core.machine import is_out_of_memory, machine
from tfkit.runs.history import describe

Call = Callable[[], object]
Make = Callable[[], Call | None]  # prepares a call; None if a library does not support the task
OWN = "tfkit"
PR_SET_PDEATHSIG = 1  # of Linux: the signal sent to a process when its parent ends
WIDEST = 110  # minimum table width, sufficient for six lengths and for all figures of decoding
LEAST, MOST = 9, 50  # minimum and maximum number of timed calls for a minimum
ENOUGH = 0.3  # minimum total seconds of these calls
SETTLED = 1.03  # timing ends when the second fastest call takes at most this multiple of the fastest
Key = TypeVar("Key")


def library(name: str) -> Any:
    """Import another library. Raise UsageError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"this comparison needs the package {name.partition('.')[0]}; tests/README.md has it"
        ) from None


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
    found: dict[str, list[float]] = {name: [] for name, call in calls.items() if call.supports}
    for _ in range(rounds + 1):
        for name, times in found.items():
            times.append(calls[name].ask(timed))
    return {name: tuple(found[name][1:]) if name in found else None for name in calls}


def compared(times: Sequence[float] | None, own: Sequence[float]) -> JsonObject:
    """Return the median of the seconds, and the median and range of their ratios to tfkit's in the same round."""
    if times is None:
        return {"seconds": None, "ratio": None, "ratios": None}
    ratios = sorted(one / other for one, other in zip(times, own, strict=True))
    middle = statistics.median
    return {"seconds": middle(times), "ratio": middle(ratios), "ratios": [ratios[0], ratios[-1]]}


def where(device: str) -> str:
    """Describe the device, or the CPU threads of this process."""
    if device != "cpu":
        return describe(torch.device(device))
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{torch.get_num_threads()} CPU threads of {machine()['processor']} ({instructions})"


def print_table(rows: Sequence[JsonObject], texts: Sequence[str], figures: Mapping[str, str]) -> None:
    """Print rows of `compared`: the keys `texts`, and `figures`, which maps a title to a format string for the row."""
    cells = []
    for row in rows:
        values = ["-"] * (len(figures) + 2)
        if row["ratio"] is not None:
            least, most = row["ratios"]
            values = [form.format(**row) for form in figures.values()]
            values += [f"{row['ratio']:.2f}x", f"{least:.2f}-{most:.2f}"]
        cells.append([*(str(row[key]) for key in texts), *values])
    print_wide(cells, [*texts, *figures, "x tfkit", "range"], texts)


def print_wide(
    cells: Sequence[Sequence[str]], heads: Sequence[str], texts: Sequence[str], title: str | None = None
) -> None:
    """Print a table that may exceed the width of the console, where it is wrapped; the columns `texts` align left."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in texts else "right", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, WIDEST)
    console.print(table)


def say(text: str, style: str = "") -> None:
    """Print a line above or below a table."""
    Console().print(text, style=style, highlight=False)


def timed(call: Call) -> float:
    """Time a call after another one that is not timed, as the first one after a stop is slower."""
    call()
    return seconds(call)


def seconds(call: Call, clock: Callable[[], float] = time.perf_counter) -> float:
    """Time a call."""
    _wait()
    start = clock()
    call()
    _wait()
    return clock() - start


def quickest(calls: Mapping[Key, Call]) -> dict[Key, float]:
    """Return the minimum seconds of each call, the statistic that other processes affect least.

    The calls take turns, so that a temporary slowdown affects all of them. Process time is measured on one CPU thread.
    """
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    clock = time.process_time if alone else time.perf_counter
    for call in calls.values():
        call()  # warm-up
    times: dict[Key, list[float]] = {name: [] for name in calls}
    while unsettled := [name for name, own in times.items() if not _is_settled(own)]:
        for name in unsettled:
            times[name].append(seconds(calls[name], clock))
    return {name: min(own) for name, own in times.items()}


def _is_settled(own: Sequence[float]) -> bool:
    """True if more calls are unlikely to lower the minimum."""
    if len(own) < LEAST or len(own) >= MOST:
        return len(own) >= MOST
    first, second = sorted(own)[:2]
    return sum(own) >= ENOUGH and second <= SETTLED * first


def peak_bytes(device: str, call: Call) -> int:
    """Return the peak memory in bytes of the tensors that a call allocates."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _quiet(), torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return int(most)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence stderr at the file descriptor, to which torch's profiler writes."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
