"""The command line of a run, the process that executes it, and a short training that measures a step."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from tfkit.core.bounds import COUNT
from tfkit.core.errors import RunError
from tfkit.recipe.text.node import shorten
from tfkit.runs.folder import METRICS, RunFolder
from tfkit.runs.history import good_lines, read_history
from tfkit.storage.files import read_bytes, read_text
from tfkit.studies.arms import Arm, StudySource, texts_of

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
INTERRUPTED = 130  # exit status
# forked from a process that has imported what trainings need, which is safe on Linux only
CONTEXT = get_context("forkserver") if sys.platform == "linux" else get_context("spawn")
PRELOADED = ["click", "tfkit.run", "tfkit.reports.counts", "tfkit.studies.process", "torch._dynamo"]


def command_of(source: StudySource, variants: Sequence[str], values: Mapping[str, Any], out: Path) -> list[str]:
    """Return the arguments of `tfkit train` that start or continue a run."""
    options = {"--variant": variants, "--set": (*source.sets, *texts_of(values)), "--import": source.imports}
    words = [word for option, texts in options.items() for text in texts for word in (option, text)]
    return ["train", source.file, *words, *["--trust"] * source.trust, "--out", str(out), "--resume"]


class Job:
    """A tfkit command in a separate process, with its output in `log`."""

    def __init__(self, words: Sequence[str], log: Path, threads: int | None = None) -> None:
        environment = os.environ | ({} if threads is None else dict.fromkeys(THREADS, str(threads)))
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
    """Run a command line as `python -m tfkit` does, with its own process group and output."""
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


STEPS = 12  # the first steps are slower and are excluded
WARM = 2
SIGNALS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
Measured = Annotated[float, Field(ge=0, le=COUNT.most)]


@dataclass(frozen=True)
class Timing:
    """Seconds and tokens per step; `overhead` is the time of a run outside its steps."""

    seconds_per_step: Measured = 0.0
    tokens_per_step: Measured = 0.0
    overhead: Measured = 0.0


def trial(source: StudySource, arm: Arm, folder: Path) -> Timing:
    """Train an arm for some steps in a separate process and folder; raise RunError on failure."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".trial-*"):  # by a trial that was killed
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=folder) as place:
        values = arm.all_values({"train.steps": STEPS, "train.seed": 0, "train.metrics": [], "train.samples": 0})
        values |= {"study": None, "train.evaluations": None, "train.generation_rate": None}
        values |= {"train.max_time": None, "train.callbacks": []}  # either may end the trial; callbacks also log it
        values |= {"train.not_finite": "skip"}  # the time is that of a run that does not diverge
        values |= {"train.evaluate_every": STEPS, "train.checkpoint_every": STEPS, "train.keep": "last"}
        out, log = Path(place) / "run", Path(place) / "log.txt"
        began = time.perf_counter()
        job = Job(command_of(source, arm.variants, values, out), log)
        before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
        try:
            job.start()
            status = job.wait()
        except BaseException:
            job.stop(signal.SIGKILL)  # the trial folder is deleted
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        whole = time.perf_counter() - began
        history = read_history(RunFolder(out)) if status else None
        has_diverged = history is not None and history.diverged is not None and (out / METRICS).is_file()
        if status and not has_diverged:  # other tuned values may prevent that
            raise RunError(f"'{arm.name}' cannot be trained: {failure(log)}")
        lines = [json.loads(line) for line in good_lines(read_bytes(out / METRICS))[0]]
        return _timing(lines, whole)


def _timing(lines: list[dict[str, float]], whole: float) -> Timing:
    read = [lines[0]["tokens"], *(after["tokens"] - before["tokens"] for before, after in pairwise(lines))]
    seconds = [tokens / line["tokens_per_second"] for tokens, line in zip(read, lines, strict=True)]
    each = median(seconds[WARM:] or seconds)
    return Timing(each, sum(read) / len(read), max(0.0, whole - sum(seconds)))
