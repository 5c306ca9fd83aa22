"""What has become of the runs of a study, as their folders say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfkit.core.errors import RunError
from tfkit.core.files import read_bytes
from tfkit.studies.plan import RUNS, Plan, PlannedRun
from tfkit.studies.run_list import scores_of
from tfkit.training.folder import METRICS, WEIGHTS, RunFolder
from tfkit.training.history import History, read_history
from tfkit.training.metrics_log import good_lines, step_in

State = Literal["waiting", "done", "diverged"]


@dataclass(frozen=True)
class Board:
    """The runs in the folder of a study."""

    plan: Plan
    folder: Path

    def run_folder(self, run: PlannedRun) -> RunFolder:
        """Where a run is."""
        return RunFolder(self.folder / RUNS / run.name)

    def history(self, run: PlannedRun) -> History | None:
        """What its run.json says; None of one that has not begun, or cannot be read."""
        try:
            return read_history(self.run_folder(run))
        except RunError:
            return None

    def state(self, run: PlannedRun) -> State:
        """Whether a run is finished; one that diverged is, too."""
        folder, history = self.run_folder(run), self.history(run)
        if history is None:
            return "waiting"
        if history.diverged is not None:
            return "diverged"
        try:
            finished = folder.holds_run and bool(folder.known.get("finished")) and (folder / WEIGHTS).is_file()
        except RunError:
            finished = False
        return "done" if finished and history.steps >= self._steps(run, history) else "waiting"

    def _steps(self, run: PlannedRun, history: History) -> int:
        """The steps that it was to make; one that stopped early, by its patience, has made them all."""
        return 0 if history.finished == "patience" else self.plan.steps_of(self.plan.arm(run.arm))

    def scores(self, run: PlannedRun) -> dict[str, float]:
        """All that a finished run measured, by name; empty of another."""
        history = self.history(run)
        if history is None or self.state(run) != "done":
            return {}
        arm = self.plan.arm(run.arm)
        found = {f"valid.{name}": value for name, value in history.best.items()}
        found |= {
            name: value for name, value in scores_of(self.run_folder(run)).items() if isinstance(value, (int, float))
        }
        rate = history.tokens / history.seconds if history.seconds else 0.0
        costs = {
            "tokens_per_second": rate,
            "seconds": history.seconds,
            "parameters": arm.parameters,
            "flops": arm.flops,
        }
        peak = {} if history.peak_memory is None else {"peak_memory": float(history.peak_memory)}
        return {**found, **costs, **peak}

    def step(self, run: PlannedRun) -> int:
        """The last step that it has written down."""
        file = self.run_folder(run) / METRICS
        try:
            lines, _ = good_lines(read_bytes(file))
        except RunError:
            return 0
        return step_in(lines[-1]) if lines else 0

    def best(self) -> dict[str, Mapping[str, Any]]:
        """The tuned values of each arm whose tuning has ended, by the first measure on the first seed.

        An arm that diverged with each of them keeps the first ones.
        """
        found: dict[str, Mapping[str, Any]] = {}
        for arm in self.plan.trained:
            runs = self.plan.tuning(arm)
            if any(self.state(run) == "waiting" for run in runs):
                continue
            measure = self.plan.measure[0]
            values = {
                place: scores[measure] for place, run in enumerate(runs) if measure in (scores := self.scores(run))
            }
            sign = -1 if self.plan.higher_is_better(measure) else 1
            place = min(values, key=lambda place: sign * values[place], default=0)
            found[arm.name] = self.plan.grid[place]
        return found
