"""Execution of a study's runs in separate processes, claimed one by one, with progress, until all are done.

A claim is a file that is created exclusively. It is locked as long as its process lives; on file systems that do not
share locks between machines, its time shows that the process on another machine is alive.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tfkit.core.errors import RunError
from tfkit.core.figures import Console, tell
from tfkit.core.machine import machine
from tfkit.core.output import SPEECH
from tfkit.reports.parts_table import rows
from tfkit.runs.folder import RUN
from tfkit.storage.files import FolderBusy, FolderLock, held_by, is_in_use, mark_in_use, read_text
from tfkit.studies.arms import StudySource
from tfkit.studies.board import Board, metric_of
from tfkit.studies.plan import RUNS, Plan, PlannedRun, identity
from tfkit.studies.plan_file import reduce
from tfkit.studies.process import INTERRUPTED, Job, command_of, failure
from tfkit.training.progress import duration

STALE = 300.0  # seconds without a heartbeat after which another machine's claim is taken over
BEAT = 30.0  # seconds between heartbeats
CLAIMED = "claimed on "


@dataclass
class RunClaim:
    """A run claimed by this process. Call `beat` regularly."""

    path: Path
    file: IO[str]
    beat_at: float

    @classmethod
    def take(cls, path: Path) -> RunClaim | None:
        """Claim a run. Return None if another living process has claimed it, or decides on a claim right now.

        Raise RunError if `path` exists and is not a claim.
        """
        try:
            lock = FolderLock.take(path.parent, None)
        except FolderBusy:
            return None
        try:
            if is_in_use(path) or _is_alive_elsewhere(path):
                return None
            path.unlink(missing_ok=True)  # left by a dead process
            file = path.open("x", encoding="utf-8")
            mark_in_use(file.fileno())
            file.write(f"{CLAIMED}{platform.node()}\n")
            file.flush()
            return cls(path, file, time.monotonic())
        finally:
            lock.release()

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self.beat_at > BEAT:
            self.beat_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Release the claim."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.file.close()


def _is_alive_elsewhere(path: Path) -> bool:
    """True if a recent claim names another machine. Raise RunError for anything but a claim."""
    if not os.path.lexists(path):
        return False
    text = read_text(path, None) if path.is_file() and not path.is_symlink() else "not a file"
    if text and not text.startswith(CLAIMED):
        raise RunError(f"{path}: is not a claim of tfkit, but has the name of one; remove it")
    return text not in ("", f"{CLAIMED}{platform.node()}\n") and time.time() - path.stat().st_mtime < STALE


def is_trained(folder: Path) -> bool:
    """True if a process is training in the run folder."""
    try:
        FolderLock.take(folder, None).release()
    except (FileNotFoundError, RunError) as error:
        return isinstance(error, FolderBusy)
    return False


LOGS = "logs"
POLL = 0.2  # seconds
REST = 9  # pause in times of a step's CPU time, which grows with the number of runs
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@dataclass
class Worker:
    """A run in progress: its job, and the lock that excludes other processes."""

    run: PlannedRun
    job: Job
    claim: RunClaim
    began: float = field(default_factory=time.monotonic)


@dataclass
class StudyProgress:
    """Progress of a study, for display."""

    board: Board
    workers: list[Worker] = field(default_factory=list)
    failed: dict[PlannedRun, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # actual by predicted seconds of each run completed here
    jobs: int = 1

    @property
    def total(self) -> int:
        """Number of all runs, with the tuned values beyond the grid that are known so far."""
        plan = self.board.plan
        return plan.most_runs + sum(len(self.board.tuning(arm)) - len(plan.tuning(arm)) for arm in plan.trained)

    def left(self) -> float | None:
        """Estimate the remaining seconds; None if unknown."""
        ratio = sum(self.seconds) / len(self.seconds) if self.seconds else 1.0
        plan, runs = self.board.plan, self.board.runs()
        unended = [run for run in runs if self.board.state(run) == "waiting" and run not in self.failed]
        if unended and not plan.timing.seconds_per_step:
            return None
        known = sum(plan.seconds(plan.arm(run.arm)) or 0.0 for run in unended)
        mean = sum(plan.seconds(arm) or 0.0 for arm in plan.trained) / len(plan.trained)
        spent = sum(time.monotonic() - worker.began for worker in self.workers)
        return max(0.0, (known + (self.total - len(runs)) * mean) * ratio - spent) / self.jobs


class Runner:
    """Scheduler of runs, `jobs` at a time, that skips those claimed by other processes."""

    def __init__(self, source: StudySource, plan: Plan, folder: Path, jobs: int = 1) -> None:
        self.source, self.folder = source, folder
        self.board = Board(plan, folder)
        self.progress = StudyProgress(self.board, jobs=jobs)
        self.threads = max(1, int(machine()["cores"]) // jobs) if jobs > 1 else None
        self._stopping = False
        self._awaited: set[PlannedRun] = set()

    def run(self, show: Callable[[StudyProgress], None]) -> bool:
        """Work until nothing is left; return False if stopped by a signal."""
        (self.folder / LOGS).mkdir(exist_ok=True)
        for run in self.board.runs():
            self._reduce(run)
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            while (began := time.thread_time()) and self._step():
                show(self.progress)
                time.sleep(max(POLL, REST * (time.thread_time() - began)))
        finally:
            self._interrupt()
            for worker in list(self.progress.workers):
                worker.job.wait()
                self._ended(worker)
            for number, handler in before.items():
                signal.signal(number, handler)
            show(self.progress)
        return not self._stopping

    def _step(self) -> bool:
        """Collect ended jobs and start new ones; return True while any run is pending."""
        for worker in list(self.progress.workers):
            worker.claim.beat()
            if worker.job.poll() is not None:
                self._ended(worker)
        if self._stopping:
            return bool(self.progress.workers)
        elsewhere = self._start()
        return bool(self.progress.workers) or elsewhere

    def _start(self) -> bool:
        """Start runs up to the limit; return True if another process works on a remaining run."""
        elsewhere = False
        busy = {worker.run for worker in self.progress.workers}
        for run in self.board.runs():
            if len(self.progress.workers) >= self.progress.jobs:
                break
            place, is_done = self.folder / RUNS / f"{run.name}.claim", self.board.state(run) != "waiting"
            if run in busy or run in self.progress.failed or (is_done and not place.is_file()):
                continue
            try:
                claim = RunClaim.take(place)  # of a run that is done: left by a killed process
            except RunError as error:
                self._fail(run, str(error))
                continue
            folder = self.board.run_folder(run).path
            if is_done:
                if claim is not None:
                    claim.release()
            elif claim is None or is_trained(folder):  # a killed study may have left a run in progress
                elsewhere = True
                self._report_waiting(run, held_by(folder))
                if claim is not None:
                    claim.release()
            elif self.board.state(run) != "waiting":  # another process has just completed it
                claim.release()
            else:
                self._begin(run, claim)
        return elsewhere

    def _report_waiting(self, run: PlannedRun, holder: str | None) -> None:
        if run not in self._awaited:
            self._awaited.add(run)
            self.progress.events.append(f"{run.name}: is {holder or 'claimed by another process'}; waiting for it")

    def _begin(self, run: PlannedRun, claim: RunClaim) -> None:
        arm = self.board.plan.arm(run.arm)
        why = self.board.stranger(run)
        digest = self.board.plan.digests.get(arm.name)
        if not why and identity(self.source.recipe(arm.variants, arm.all_values())) != digest:
            why = f"the recipe of '{arm.name}' has changed since the study was planned; repeat the command"
        if why:
            claim.release()
            self._fail(run, why)
            return
        words = command_of(self.source, arm.variants, self.board.plan.values(run), self.board.run_folder(run).path)
        log = self.folder / LOGS / f"{run.name}.txt"
        log.write_bytes(b"")
        job = Job(words, log, self.threads)
        self.progress.workers.append(Worker(run, job, claim))
        job.start()
        if self._stopping:  # since it was about to start
            job.stop()

    def _ended(self, worker: Worker) -> None:
        """Record an ended job: its run is done, diverged or failed."""
        self.progress.workers.remove(worker)
        self._reduce(worker.run)
        worker.claim.release()
        run, state = worker.run, self.board.state(worker.run)
        if state == "done":
            measure = f"test.{metric_of(run.probe)}" if run.probe else self.board.plan.measure[0]
            value = self.board.scores(run).get(measure)
            shown = "" if value is None else f", {measure} {value:.4g}"
            predicted = self.board.plan.seconds(self.board.plan.arm(run.arm))
            took = time.monotonic() - worker.began
            if predicted:
                self.progress.seconds.append(took / predicted)
            self.progress.events.append(f"{run.name}: done{shown}")
        elif state == "diverged":
            history = self.board.history(run)
            step = "" if history is None or history.diverged is None else f" at step {history.diverged:,}"
            self.progress.events.append(f"{run.name}: diverged{step}")
        elif is_trained(self.board.run_folder(run).path):  # a process left by a killed study may have locked it first
            self._report_waiting(run, held_by(self.board.run_folder(run).path))
        elif not self._stopping or worker.job.wait() not in (INTERRUPTED, -signal.SIGINT):
            self._fail(run, self._why(run, worker.job.wait()))

    def _reduce(self, run: PlannedRun) -> None:
        """Delete the files of a finished run that the study does not keep."""
        if self.board.plan.keep != "all" and self.board.state(run) == "done":
            reduce(self.board.run_folder(run), self.board.plan.keep)

    def _fail(self, run: PlannedRun, why: str) -> None:
        self.progress.failed[run] = why
        self.progress.events.append(f"{run.name}: failed: {why}")

    def _why(self, run: PlannedRun, status: int) -> str:
        if status < 0:
            return f"its process was killed by signal {-status} ({signal.Signals(-status).name})"
        history, steps = self.board.history(run), self.board.plan.run_steps(run)
        if status == 0 and history is not None and history.steps < steps:
            return f"stopped at step {history.steps:,} of {steps:,} by train.max_time; repeat the command to continue"
        if status == 0:
            return f"ended well, but {self.board.run_folder(run) / RUN} does not say so"
        return failure(self.folder / LOGS / f"{run.name}.txt")

    def _stop(self, number: int, _: object) -> None:
        self._stopping = True
        self._interrupt()

    def _interrupt(self) -> None:
        """Interrupt the running trainings, which save and stop."""
        for worker in self.progress.workers:
            worker.job.stop()


def commands(source: StudySource, plan: Plan, folder: Path) -> list[list[str]]:
    """Return the command line of each remaining run known so far."""
    board = Board(plan, folder)
    return [
        command_of(source, plan.arm(run.arm).variants, plan.values(run), board.run_folder(run).path)
        for run in board.runs()
        if board.state(run) == "waiting"
    ]


def announce(plan: Plan, jobs: int, console: Console) -> None:
    """Print the runs of a plan and the estimated time."""
    heads, cells = plan.table()
    if not (SPEECH.json and console.stderr):
        rows(console, cells, heads)
    for line in (plan.summary(jobs), *(f"note: {note}" for note in plan.notes)):
        tell(console, line)


class Watcher:
    """Display of the progress of a study."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._printed = 0
        is_live = console.is_terminal and not SPEECH.json
        self._live = Live(console=console, refresh_per_second=4, transient=True) if is_live else None

    def __enter__(self) -> Watcher:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: StudyProgress) -> None:
        """Print new events and update the table."""
        for event in progress.events[self._printed :]:
            self._printed += 1
            ended = sum(progress.board.state(run) != "waiting" for run in progress.board.runs())
            tell(self.console, f"{event} ({summary(progress)})", ended=ended, runs=progress.total)
        if self._live is not None:
            self._live.update(self._table(progress))

    def _table(self, progress: StudyProgress) -> Group:
        plan = progress.board.plan
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("variant", overflow="fold")
        for seed in () if plan.design else plan.seeds:
            table.add_column(f"seed {seed}", justify="right")
        for worker in progress.workers if plan.design else ():
            table.add_row(f"{worker.run.name}  {_cell(progress, worker.run)}")
        best = progress.board.best()
        for arm in plan.trained if plan.design is None else ():
            cells = []
            for seed in plan.seeds:
                tuned = best.get(arm.name)
                runs = progress.board.tuning(arm) if tuned is None else [PlannedRun(arm.name, seed, tuned)]
                known = tuned is not None or seed == plan.seeds[0]
                cells.append(" ".join(_cell(progress, run) for run in runs) if known else ".")
            table.add_row(arm.name, *cells)
        return Group(table, Text(summary(progress), style="dim"))


def _cell(progress: StudyProgress, run: PlannedRun) -> str:
    """Return the first measure of a finished run, else its progress or state."""
    if run in progress.failed:
        return "failed"
    if any(worker.run == run for worker in progress.workers):
        return f"{100 * progress.board.step(run) // progress.board.plan.run_steps(run)} %"
    state = progress.board.state(run)
    if state == "done":
        value = progress.board.scores(run).get(progress.board.plan.measure[0])
        return "done" if value is None else f"{value:.4g}"
    return "." if state == "waiting" else state


def summary(progress: StudyProgress) -> str:
    """Count the done, running and failed runs, and estimate the time left."""
    ended, left = sum(progress.board.state(run) != "waiting" for run in progress.board.runs()), progress.left()
    text = f"{ended} of {progress.total} done, {len(progress.workers)} running"
    text += f", {len(progress.failed)} failed" if progress.failed else ""
    return text if left is None else f"{text}, {duration(left)} left"
