"""The command line of a run, and the process that executes it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

from tfkit.core.errors import RunError
from tfkit.recipe.text.node import shorten
from tfkit.storage.files import read_text
from tfkit.studies.arms import StudySource, texts_of

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
INTERRUPTED = 130  # exit status
# forked from a process that has imported what trainings need, which is safe on Linux only
CONTEXT = get_context("forkserver") if sys.platform == "linux" else get_context("spawn")
PRELOADED = [
    *("click", "tfkit.run", "tfkit.reports.counts", "tfkit.studies.process", "torch._dynamo"),
    *("matplotlib.figure", "matplotlib.backends.backend_svg"),  # skipped if missing
]


def command_of(source: StudySource, variants: Sequence[str], values: Mapping[str, Any], out: Path) -> list[str]:
    """Return the arguments of `tfkit train` that start or continue a run."""
    words = ["train", source.file]
    for name in variants:
        words += ["--variant", name]
    for text in (*source.sets, *texts_of(values)):
        words += ["--set", text]
    for name in source.imports:
        words += ["--import", name]
    return [*words, *(["--trust"] if source.trust else []), "--out", str(out), "--resume"]


class Job:
    """A command of tfkit in a process of its own, with its output in `log`."""

    def __init__(self, words: Sequence[str], log: Path, threads: int | None = None) -> None:
        environment = {**os.environ, **({} if threads is None else dict.fromkeys(THREADS, str(threads)))}
        self._process = CONTEXT.Process(target=_run, args=(list(words), log.absolute(), environment, threads))

    def start(self) -> None:
        """Start the process. A SIGINT is kept until it can be handled; the script of the caller is not imported."""
        CONTEXT.set_forkserver_preload(PRELOADED)
        resource_tracker.ensure_running()  # which would unblock SIGINT
        caller, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        _keep_interrupts(True)
        try:
            self._process.start()
        finally:
            sys.modules["__main__"] = caller
            _keep_interrupts(False)

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal; None while running."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        self._process.join()
        return self._process.exitcode or 0

    def stop(self, number: int = signal.SIGINT) -> None:
        """Send a signal; SIGINT makes a training save and stop. Do nothing if it has not begun or has ended."""
        if self._process.pid is None or self.poll() is not None:
            return
        try:
            getattr(os, "killpg", os.kill)(self._process.pid, number)
        except ProcessLookupError:  # its group is not made yet
            os.kill(self._process.pid, number)


def _run(words: list[str], log: Path, environment: Mapping[str, str], threads: int | None) -> None:
    """Run a command line as `python -m tfkit` does, in a process group and with an output of its own."""
    if hasattr(os, "setsid"):  # not on Windows
        os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(environment)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    sys.argv[1:] = words
    try:
        _keep_interrupts(False)
        runpy.run_module("tfkit", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _keep_interrupts(keep: bool) -> None:
    """Keep each SIGINT pending, in the processes started meanwhile too, or handle it again."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK if keep else signal.SIG_UNBLOCK, [signal.SIGINT])


def failure(log: Path) -> str:
    """Return the last message of a failed command on one line."""
    try:
        text = read_text(log, None)
    except RunError as error:
        return str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((place for place in range(len(lines) - 1, -1, -1) if not lines[place].startswith(" ")), 0)
    return shorten(" ".join(line.strip() for line in lines[first:]).removeprefix("tfkit: "), 300) or "no output"
