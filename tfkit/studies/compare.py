"""Reports on the runs of a study, or on any runs, grouped by recipe, and the provenance of a printed number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tfkit.core.errors import RunError, UsageError
from tfkit.recipe.load import Recipe
from tfkit.reports.counts import Cost, count, default_length
from tfkit.reports.parts_table import rows, say
from tfkit.runs.folder import RunFolder, read_labels
from tfkit.runs.history import History, read_history
from tfkit.runs.supply import saved_recipe
from tfkit.studies.arms import changes_of, plain
from tfkit.studies.board import altered, examples_of, measured
from tfkit.studies.plan import EXACT, PLAN, RUNS, Plan
from tfkit.studies.plan_file import read_plan
from tfkit.studies.report import COLUMNS, StudyReport, environment_of
from tfkit.studies.results import ArmResult, Cell, StudyContext, curve_of, results_of, study_results
from tfkit.studies.run_list import RunRow, check_key
from tfkit.studies.settings import measures_of, rises


def study_report(plan: Plan, folder: Path, failed: Mapping[str, str] | None = None) -> StudyReport:
    """Return the report of a study's folder."""
    results = study_results(plan, folder, failed)
    folders = [RunFolder(folder / "runs" / cell.folder) for arm in results.own for cell in arm.cells]
    return StudyReport(results, plan.changes, environment_of(folders), plan.text, plan.made)


def runs_report(folders: Sequence[Path], measure: Sequence[str], trust: bool, imports: Sequence[str]) -> StudyReport:
    """Return a report that compares runs with the first run. Runs that differ only in the seed form one arm.

    Raise UsageError for folders without a trained run.
    """
    grouped: list[tuple[object, list[tuple[RunFolder, Recipe, History]]]] = []
    for path in dict.fromkeys(folders):
        folder = RunFolder(path)
        recipe, history = _trained(folder, trust, imports)
        data = plain(recipe)
        data["train"].pop("seed")
        group = next((runs for known, runs in grouped if known == data), None)
        if group is None:
            grouped.append((data, group := []))
        group.append((folder, recipe, history))
    groups = [runs for _, runs in grouped]
    if len(groups) < 2:
        raise UsageError("these runs differ only in their seeds; add one with another recipe")
    arms = [_arm(runs, _name(runs, groups)) for runs in groups]
    first = groups[0][0][1]
    chosen = tuple(measure) or tuple(measures_of(first.data, first.train)[:1])
    known = {name for arm in arms for cell in arm.cells for name in cell.scores}
    for name in chosen:
        if name not in known:
            raise UsageError(f"--measure {name}: no run has it; they have {', '.join(sorted(known))}")
    rising = tuple(name for name in chosen if rises(name, first.train))
    changes = {arm.name: changes_of(first, runs[0][1]) for arm, runs in zip(arms[1:], groups[1:], strict=True)}
    edited = {str(folder): why for runs in groups for folder, *_ in runs if (why := altered(folder))}
    results = results_of(StudyContext("comparison", altered=edited), arms, chosen, rising)
    return StudyReport(results, changes, environment_of([folder for runs in groups for folder, *_ in runs]))


def _trained(folder: RunFolder, trust: bool, imports: Sequence[str]) -> tuple[Recipe, History]:
    if (folder.path / PLAN).is_file():
        raise UsageError(f"{folder}: is a study; compare it alone")
    if not folder.holds_run:
        raise UsageError(f"{folder}: contains no run")
    history = read_history(folder)
    if history is None:
        raise UsageError(f"{folder}: run.json is missing, as in runs of older versions; tfkit train --resume writes it")
    return saved_recipe(folder, trust, imports), history


def _arm(runs: Sequence[tuple[RunFolder, Recipe, History]], name: str) -> ArmResult:
    cells = []
    for folder, recipe, history in runs:
        state = "diverged" if history.diverged is not None else "done" if history.finished else "stopped"
        state = "altered" if altered(folder) else state
        known = {**measured(history, folder), "parameters": float(history.parameters)} if state == "done" else {}
        cells.append(Cell(recipe.train.seed, state, str(folder), known, curve_of(folder), examples_of(folder)))
    seeds = [cell.seed for cell in cells]
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"{cells[0].folder}: two runs of this recipe have the same seed; pass only one of them")
    folder, recipe, history = runs[0]
    made_of = " ".join([*history.variants, *(f"{key}={value}" for key, value in history.set.items())])
    cost = _cost(folder, recipe)
    return ArmResult(
        name,
        tuple(cells),
        made_of,
        parameters=history.parameters,
        flops=cost.flops_per_token,
        cache_bytes=cost.cache_bytes,
    )


def _name(runs: Sequence[tuple[RunFolder, Recipe, History]], groups: Sequence[object]) -> str:
    """Name a group of runs by its variants and overrides; a single run by its folder."""
    folder, _, history = runs[0]
    words = [*history.variants, *(f"{key}={_word(value)}" for key, value in history.set.items() if key != "train.seed")]
    return f"{history.recipe} {' '.join(words)}".strip() if len(runs) > 1 and words else folder.path.name


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _cost(folder: RunFolder, recipe: Recipe) -> Cost:
    """Count the cost of a run's model. Return zero costs if its parts are unavailable."""
    from tfkit.runs.folder import load_tokenizer

    try:
        labelled = recipe.labelled(len(read_labels(folder)))
        size = load_tokenizer(folder).sizes if labelled.unknown_vocab else None
        blueprint = labelled.blueprint(size)
        return count(blueprint, min(512, default_length(blueprint))).total
    except (RunError, UsageError):
        return Cost()


def print_results(report: StudyReport, console: Console) -> None:
    """Print the verdicts, a table for each measure, and the claims."""
    results = report.results
    for measure in results.measure:
        if measure in EXACT:
            continue
        console.print()
        say(console, f"{measure} ({'more' if measure in results.rising else 'less'} is better)", "bold")
        # without the space, an interval does not wrap at its comma
        cells = [[re.sub(r"(\[.*), (.*\])", r"\1,\2", row[key]) for key in COLUMNS] for row in report.rows(measure)]
        rows(console, cells, list(COLUMNS.values()))
    exact = [measure for measure in results.measure if measure in EXACT]
    if exact:
        console.print()
        cells = [[arm.name, *(f"{arm.exact(measure):,}" for measure in exact)] for arm in results.own]
        rows(console, cells, ["variant", *exact])
    if report.trends:
        console.print()
        heads, cells = report.trend_rows()
        rows(console, cells, heads)
    for row in report.claim_rows():
        console.print()
        paper = f" ({row['paper']})" if row["paper"] else ""
        say(console, f"claim: {row['says']} on {row['on']}{paper}: {row['verdict']}, n {row['n']}, {row['difference']}")
    for title, lines in report.lists().items():
        console.print()
        say(console, title, "bold")
        for name, why in lines:
            say(console, f"{name}: {why}")


NUMBER = re.compile(r"\s*([\w.\-]+)\s*=\s*([-+]?\d*\.?(\d*)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class PrintedNumber:
    """A measure and its printed value: `valid.loss=1.865` matches values from 1.8645 to 1.8655."""

    measure: str
    value: float
    reach: float  # half a unit of the last digit

    @classmethod
    def of(cls, text: str) -> PrintedNumber:
        """Parse MEASURE=NUMBER; raise UsageError if it is malformed."""
        match = NUMBER.fullmatch(text)
        try:
            value = float(match[2]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise UsageError(f"--produced {text!r}: write a measure and a number: valid.loss=1.865")
        exponent = re.search(r"[eE]([-+]?\d+)", match[2])
        return cls(match[1], value, 0.5 * 10.0 ** ((int(exponent[1]) if exponent else 0) - len(match[3])))

    def matches(self, value: object) -> bool:
        """True if the value rounds to the printed number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(float(str(value)) - self.value) <= self.reach * (1 + 1e-9)


def producers(runs: Sequence[RunRow], number: PrintedNumber) -> list[RunRow]:
    """Return the runs that have the printed value. Raise UsageError for a measure that no run has."""
    check_key(runs, number.measure, f"--produced {number.measure}")
    return [row for row in runs if any(number.matches(value) for value in row.lookup(number.measure))]


def means(runs: Sequence[RunRow], number: PrintedNumber) -> Iterator[str]:
    """Describe the study variants whose mean, or difference from the baseline, rounds to the printed number."""
    for folder in dict.fromkeys(study for row in runs if (study := study_of_run(row.folder)) is not None):
        try:
            results = study_report(read_plan(folder), folder).results
        except RunError:
            continue
        for arm in results.own:
            spread = arm.spread(number.measure)
            if spread is not None and spread.n > 1 and number.matches(spread.mean):
                yield f"{folder}: {arm.name}: mean of {spread.n} runs, {spread.mean:.6g}"
        for one in results.comparisons:
            if one.measure == number.measure and number.matches(one.mean):
                yield f"{folder}: {one.arm}: difference from {one.against}, {one.mean:.6g}"


def study_of_run(run: Path) -> Path | None:
    """Return the folder of the study that a run belongs to, if any."""
    folder = run.absolute().parent.parent
    return run.parent.parent if run.absolute().parent.name == RUNS and (folder / PLAN).is_file() else None
