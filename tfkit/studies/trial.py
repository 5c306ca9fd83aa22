"""A short training that measures the time and tokens of a step."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import Field

from tfkit.core.bounds import COUNT
from tfkit.core.errors import RunError
from tfkit.storage.files import read_bytes
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.process import Job, command_of, failure
from tfkit.training.folder import METRICS, RunFolder
from tfkit.training.history import read_history
from tfkit.training.metrics_log import good_lines

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
        values = arm.all_values(
            {"train.steps": STEPS, "train.seed": 0, "train.metrics": [], "train.samples": 0, "study": None}
        )
        values |= {"train.evaluations": None, "train.generation_rate": None}
        values |= {"train.max_time": None, "train.callbacks": []}  # either may end the trial; callbacks also log it
        values |= {"train.not_finite": "skip"}  # the time is that of a run that does not diverge
        values |= {"train.evaluate_every": STEPS, "train.checkpoint_every": STEPS, "train.keep": "last"}
        out, log = Path(place) / "run", Path(place) / "log.txt"
        began = time.perf_counter()
        job = Job(command_of(source, arm.variants, values, out), log)
        before = {number: signal.signal(number, _stop) for number in SIGNALS}
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
        if status and not _has_diverged(out):
            raise RunError(f"'{arm.name}' cannot be trained: {failure(log)}")
        lines = [json.loads(line) for line in good_lines(read_bytes(out / METRICS))[0]]
        return _timing(lines, whole)


def _has_diverged(out: Path) -> bool:
    """True if training began and diverged, which other tuned values may prevent."""
    history = read_history(RunFolder(out))
    return history is not None and history.diverged is not None and (out / METRICS).is_file()


def _timing(lines: list[dict[str, float]], whole: float) -> Timing:
    read = [
        lines[0]["tokens"],
        *(after["tokens"] - before["tokens"] for before, after in pairwise(lines)),
    ]
    seconds = [tokens / line["tokens_per_second"] for tokens, line in zip(read, lines, strict=True)]
    each = median(seconds[WARM:] or seconds)
    return Timing(each, sum(read) / len(read), max(0.0, whole - sum(seconds)))


def _stop(number: int, _: object) -> None:
    raise KeyboardInterrupt
