"""Training of a ladder: the smaller sizes, the forecast, the largest size, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tfkit.core.console import Console
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.forecast import FORECAST, foreseen, held_out_losses, law_of, points_of, shown, verdict_of
from tfkit.studies.ladder import LadderPlan
from tfkit.studies.ladder_report import HTML, LadderReport
from tfkit.studies.ladder_results import ladder_results
from tfkit.studies.runner import Runner
from tfkit.studies.watching import Watcher

Outcome = Literal["done", "stopped", "failed"]


@dataclass
class Climb:
    """Training of a ladder; `say` prints a line."""

    source: StudySource
    plan: LadderPlan
    folder: Path
    jobs: int
    flops: float | None
    say: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Train the remaining runs and write the report, also on failure."""
        if not self._trained(*self.plan.arms[:-1]):
            return "stopped"
        if self.failed:
            return self._told("no prediction yet: mend what failed, and type the same line again", "failed")
        fit, reasons = law_of(points_of(self.plan, self.folder))
        if fit is None:
            for reason in reasons:
                self.say(f"no law: {reason}")
            return self._told("the largest size is not trained, since nothing predicts it", "failed")
        forecast = foreseen(self.plan, self.folder, fit)
        self.say(f"{forecast.size}: predicted {shown(forecast.predicted)}, written to {self.folder / FORECAST}")
        if not self._trained(self.plan.held_out):
            return "stopped"
        losses = held_out_losses(self.plan, self.folder)
        return self._told(f"{forecast.size}: {verdict_of(forecast, list(losses.values()))}", "done")

    def _trained(self, *arms: Arm) -> bool:
        """Train the runs of these arms; return False if stopped by a signal."""
        runner = Runner(self.source, self.plan.only(*arms), self.folder, self.jobs)
        with Watcher(Console()) as watcher:
            finished = runner.run(watcher.show)
        self.failed |= {run.name: why for run, why in runner.progress.failed.items()}
        return finished

    def _told(self, verdict: str, outcome: Outcome) -> Outcome:
        """Write the report and print its summary."""
        results = ladder_results(self.plan, self.folder, self.flops, self.failed)
        LadderReport(results).write(self.folder)
        for line in results.law_lines():
            self.say(line)
        for name, why in self.failed.items():
            self.say(f"{name}: failed: {why}")
        self.say(verdict)
        self.say(f"the page: {self.folder / HTML}")
        return "failed" if self.failed else outcome
