"""Training of a ladder: the smaller sizes, the forecast, the largest size, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tfkit.core.console import Console
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.ladder import LadderPlan
from tfkit.studies.ladder_report import LadderReport
from tfkit.studies.ladder_results import FORECAST, foreseen, ladder_results
from tfkit.studies.law import shown
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
        last = self.plan.last
        if not self._trained(*(arm for arm in self.plan.arms if arm not in last)):
            return "stopped"
        if self.failed:
            return self._conclude("no prediction yet: fix the failed runs, and repeat the command", "failed")
        results = ladder_results(self.plan, self.folder)
        if results.fit is None:
            for reason in results.reasons:
                self.say(f"no law: {reason}")
            problem = "" if results.forecast else "the largest size is not trained, as nothing predicts it"
            return self._conclude(problem, "failed")
        forecast = foreseen(self.plan, self.folder, results.fit, results.variants)
        self.say(f"{forecast.size}: predicted {shown(forecast.predicted)}, written to {self.folder / FORECAST}")
        for one in forecast.variants:
            self.say(one.words(self.plan))
        if not self._trained(*last):
            return "stopped"
        return self._conclude("", "done")

    def _trained(self, *arms: Arm) -> bool:
        """Train the runs of these arms; return False if stopped by a signal."""
        runner = Runner(self.source, self.plan.only(*arms), self.folder, self.jobs)
        with Watcher(Console()) as watcher:
            finished = runner.run(watcher.show)
        self.failed |= {run.name: why for run, why in runner.progress.failed.items()}
        return finished

    def _conclude(self, problem: str, outcome: Outcome) -> Outcome:
        """Write the report and print its summary."""
        results = ladder_results(self.plan, self.folder, self.flops, self.failed)
        LadderReport(results).write(self.folder)
        for line in results.law_lines():
            self.say(line)
        for name, why in self.failed.items():
            self.say(f"{name}: failed: {why}")
        self.say(problem or f"{self.plan.sizes[-1].name}: {results.verdict}")
        self.say(f"the page: {self.folder / LadderReport.HTML}")
        return "failed" if self.failed else outcome
