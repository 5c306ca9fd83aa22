"""Execution of a study's runs in separate processes, until all are done or a signal arrives."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.core.machine import machine
from tfkit.storage.locks import held_by
from tfkit.studies.arms import StudySource
from tfkit.studies.board import Board
from tfkit.studies.claims import RunClaim, is_trained
from tfkit.studies.digest import identity
from tfkit.studies.keeping import reduce
from tfkit.studies.plan import RUNS, Plan, PlannedRun
from tfkit.studies.probing import metric_of
from tfkit.studies.process import INTERRUPTED, Job, command_of, failure
from tfkit.training.folder import RUN

LOGS = "logs"
POLL = 0.2  # seconds
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
    def plan(self) -> Plan:
        """Plan of the study."""
        return self.board.plan

    @property
    def runs(self) -> list[PlannedRun]:
        """The runs known so far."""
        return self.board.runs()

    def left(self) -> float | None:
        """Estimate the remaining seconds; None if unknown."""
        ratio = sum(self.seconds) / len(self.seconds) if self.seconds else 1.0
        open_runs = [run for run in self.runs if self.board.state(run) == "waiting" and run not in self.failed]
        unknown = self.plan.most_runs - len(self.runs)
        each = [self.plan.seconds(self.plan.arm(run.arm)) for run in open_runs]
        if any(seconds is None for seconds in each):
            return None
        known = sum(seconds or 0.0 for seconds in each)
        mean = sum(self.plan.seconds(arm) or 0.0 for arm in self.plan.trained) / len(self.plan.trained)
        spent = sum(time.monotonic() - worker.began for worker in self.workers)
        return max(0.0, (known + unknown * mean) * ratio - spent) / self.jobs


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
            while self._step():
                show(self.progress)
                time.sleep(POLL)
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
        for run in self.progress.runs:
            if len(self.progress.workers) >= self.progress.jobs:
                break
            if run in busy or run in self.progress.failed or self.board.state(run) != "waiting":
                continue
            try:
                claim = RunClaim.take(self.folder / RUNS / f"{run.name}.claim")
            except RunError as error:
                self._fail(run, str(error))
                continue
            folder = self.board.run_folder(run).path
            if claim is None or is_trained(folder):  # a killed study may have left a run in progress
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
    lines = []
    for run in board.runs():
        arm = plan.arm(run.arm)
        if board.state(run) == "waiting":
            lines.append(command_of(source, arm.variants, plan.values(run), board.run_folder(run).path))
    return lines
