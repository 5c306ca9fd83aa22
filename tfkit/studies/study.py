"""A study from Python: run it, and read its results as data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfkit.core.blame import parts_named
from tfkit.core.bounds import JOBS
from tfkit.core.errors import UsageError, optional
from tfkit.core.figures import Console
from tfkit.storage.files import written_to
from tfkit.studies.again import Again
from tfkit.studies.arms import StudySource
from tfkit.studies.compare import study_report
from tfkit.studies.plan import EXACT, PLAN, Plan
from tfkit.studies.plan_file import keep_plan, read_plan
from tfkit.studies.planning import make_plan
from tfkit.studies.report import StudyReport, check_packages
from tfkit.studies.results import Results
from tfkit.studies.runner import Runner, Watcher, announce
from tfkit.training.processes import Interrupted

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class StudyRun:
    """A study's folder and report; `table` and `runs` are pandas data frames."""

    folder: Path
    report: StudyReport

    @property
    def results(self) -> Results:
        """Results, with all comparisons and claims."""
        return self.report.results

    @property
    def page(self) -> Path:
        """Path of the page, report.html."""
        return self.folder / self.report.HTML

    @property
    def table(self) -> DataFrame:
        """Row for each measure and variant: mean, spread, difference from the baseline with interval, p and verdict."""
        return _frame(list(self._rows())).set_index(["measure", "variant"])

    @property
    def runs(self) -> DataFrame:
        """Row for each run: its variant, seed, state, folder and scores."""
        rows: list[dict[str, object]] = [
            {"variant": arm.name, "seed": cell.seed, "state": cell.state, "run": cell.folder, **cell.scores}
            for arm in self.results.own
            for cell in arm.cells
        ]
        return _frame(rows).set_index(["variant", "seed"])

    def _rows(self) -> Iterator[dict[str, object]]:
        comparisons = {(one.measure, one.arm): one for one in self.results.comparisons}
        for measure in self.results.measure:
            for arm in self.results.shown:
                spread, one = arm.spread(measure), comparisons.get((measure, arm.name))
                is_exact = measure in EXACT
                compared = {"difference": "mean", "low": "low", "high": "high", "p": "p_holm"}
                yield {
                    "measure": measure,
                    "variant": arm.name,
                    "n": 0 if (known := spread or one) is None else known.n,
                    "mean": float(arm.exact(measure)) if is_exact else getattr(spread, "mean", None),
                    "sd": None if is_exact else getattr(spread, "sd", None),
                    **{key: getattr(one, name, None) for key, name in compared.items()},
                    "verdict": ("" if is_exact else "baseline") if one is None else one.words(),
                }

    def _repr_html_(self) -> str:
        return str(self.table.to_html())

    def __repr__(self) -> str:
        return f"StudyRun({str(self.folder)!r}): {self.report.summary()}"


def _frame(rows: Sequence[dict[str, object]]) -> DataFrame:
    frame: DataFrame = optional("pandas", "pandas", "data frames need").DataFrame(rows)
    return frame


@parts_named()
def study(
    source: str | Path,
    out: str | Path | None = None,
    jobs: int = 1,
    progress: bool = True,
    sets: Sequence[str] = (),
    imports: Sequence[str] = (),
    trust: bool = False,
) -> StudyRun:
    """Train the variants of a recipe with `study:` (a shipped name or a path) as `tfkit study` does, and compare them.

    Finished runs in the folder `out` (default: studies/<its name>) are not repeated. If `source` is the folder of a
    study, read its results without training. Raise RecipeError with the faults of all variants, UsageError for invalid
    arguments, RunError for a folder with other files, and Interrupted after Ctrl-C: the next call continues.
    """
    if not isinstance(source, str | Path):
        raise UsageError("tfkit.study needs a name or path, because the process of each run reads the file")
    if type(jobs) is not int or not 1 <= jobs <= JOBS.most:
        raise UsageError(f"jobs must be a whole number from 1 to {JOBS.most:,}, got {jobs!r}")
    if (Path(source) / PLAN).is_file():
        if out is not None or sets:
            raise UsageError(f"{source}: is the folder of a study and is only read; omit out and sets")
        return StudyRun(Path(source), study_report(read_plan(Path(source)), Path(source)))
    check_packages()
    read = StudySource(str(source), tuple(sets), tuple(map(str, imports)), trust)
    recipe = read.recipe()
    recipe.tell_warnings()
    folder = Path(out) if out is not None else Path("studies") / recipe.name
    with written_to(folder):
        plan = keep_plan(folder, make_plan(read, folder))
        console = Console() if progress else None
        if console is not None:
            announce(plan, jobs, console)
        report = train_study(read, plan, folder, jobs, console)
    if report is None:
        raise Interrupted("the study was stopped; to continue, call tfkit.study again")
    return StudyRun(folder, report)


def train_study(
    source: StudySource, plan: Plan, folder: Path, jobs: int, console: Console | None
) -> StudyReport | None:
    """Train the remaining runs of a study and write its report; return None if it is stopped."""
    failed = train_runs(source, plan, folder, jobs, console)
    if failed is None:
        return None
    if isinstance(source, Again):
        return source.report(plan, folder, failed)
    report = study_report(read_plan(folder), folder, failed)  # a design's plan has grown
    report.write(folder)
    return report


def train_runs(
    source: StudySource, plan: Plan, folder: Path, jobs: int, console: Console | None
) -> dict[str, str] | None:
    """Train the remaining runs of a study; return the reasons of failed runs by name, None if it is stopped."""
    runner = Runner(source, plan, folder, jobs)
    with nullcontext() if console is None else Watcher(console) as watcher:
        if not runner.run(watcher.show if watcher else lambda _: None):
            return None
    if plan.design is not None and not plan.design.chosen:
        plan = keep_plan(folder, make_plan(source, folder, timed=False))
        if plan.design is not None and plan.design.chosen:  # the screen has ended
            if console is not None:
                announce(plan, jobs, console)
            return train_runs(source, plan, folder, jobs, console)
    return {run.name: why for run, why in runner.progress.failed.items()}
