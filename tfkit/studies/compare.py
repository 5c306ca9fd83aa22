"""Reports on the runs of a study, or on any runs, grouped by recipe, and the provenance of a printed number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from tfkit.core.errors import RunError, UsageError
from tfkit.recipe.load import Recipe
from tfkit.reports.counts import Cost, count, default_length
from tfkit.reports.parts_table import rows, say
from tfkit.run.handout import environment_of
from tfkit.runs.folder import METRICS, RunFolder, read_labels
from tfkit.runs.history import History, good_lines, read_history
from tfkit.runs.supply import saved_recipe
from tfkit.storage.files import read_bytes, read_json
from tfkit.studies.arms import changes_of, plain
from tfkit.studies.board import Board, altered, examples_of, measured
from tfkit.studies.design_section import BASELINE
from tfkit.studies.plan import EXACT, PLAN, RUNS, Plan, PlannedRun
from tfkit.studies.plan_file import read_plan
from tfkit.studies.report import COLUMNS, StudyReport
from tfkit.studies.results import LOST, RESULTS, ArmResult, Cell, Results, StudyContext, results_of
from tfkit.studies.run_list import RunRow, check_key, is_score
from tfkit.studies.settings import measures_of, rises


def study_report(plan: Plan, folder: Path, failed: Mapping[str, str] | None = None) -> StudyReport:
    """Return the report of a study's folder."""
    results = study_results(plan, folder, failed)
    folders = [RunFolder(folder / "runs" / cell.folder) for arm in results.own for cell in arm.cells]
    return StudyReport(results, plan.changes, environment_of(folders), plan, folder)


def study_results(plan: Plan, folder: Path, failed: Mapping[str, str] | None = None) -> Results:
    """Return the current results in a study's folder.

    `failed` has the reasons of failed runs by name; None reads them from the last report in the folder.
    """
    failed = _known_failures(folder) if failed is None else failed
    board = Board(plan, folder)
    best, altered, early, arms = board.best(), dict[str, str](), dict[str, str](), list[ArmResult]()
    known = plan.design.scores if plan.design is not None else {}  # of the baseline in another study
    noise = tuple(Cell(int(seed), "done", "", scores) for seed, scores in known.items())
    for arm in plan.arms:
        own = plan.arm(arm.name)
        tuned = best.get(own.name, plan.grid[0])
        runs = [PlannedRun(own.name, seed, tuned) for seed in plan.seeds_of(own)]
        tries = board.tuning(own)
        tuning = tuple(_cell(board, run, failed, altered, probed=False) for run in tries if run.tuned)
        made_of = " ".join([*arm.variants, *(f"{key}={value}" for key, value in arm.values.items())])
        made_of = made_of or "the recipe as it is" * (arm.name == BASELINE)
        tried = {key: list(dict.fromkeys(run.tuned[key] for run in tries)) for key in plan.tune}
        cells = tuple(_cell(board, run, failed, altered) for run in runs) or noise
        if len(tuning) > 1 and any(cell.state == "altered" for cell in tuning):  # it decided the tuned values
            cells = tuple(replace(cell, state="altered", scores={}) for cell in cells)
        counted = [*tries, *runs, *(replace(run, probe=probe) for run in runs for probe in plan.probes)]
        begun = {run.name: at for run in counted if (at := board.early(run))}
        early |= begun
        arms.append(
            ArmResult(
                *(arm.name, cells, made_of, arm.same_as, arm.solved, best.get(own.name, {})),
                *(arm.parameters, arm.flops, arm.cache_bytes, arm.size, bool(begun), tried),
                *(plan.steps_of(own), arm.stage, plan.options_of(arm), tuning),
            )
        )
    context = StudyContext(
        *(plan.name, plan.about, plan.claims, plan.equal_within, failed, altered, plan.changed, True, plan.tune),
        *(plan.tuned_by or plan.measure[0], early),
    )
    return results_of(context, arms, plan.measure, plan.rising, plan.design)


def _known_failures(folder: Path) -> dict[str, str]:
    """Return the failed runs of the last report; empty if there is none."""
    try:
        known = read_json(folder / RESULTS) if (folder / RESULTS).is_file() else {}
    except RunError:
        return {}
    failed = known.get("failed") if isinstance(known, dict) else None
    return {str(name): str(why) for name, why in failed.items()} if isinstance(failed, dict) else {}


def _cell(
    board: Board, run: PlannedRun, failed: Mapping[str, str], altered: dict[str, str], probed: bool = True
) -> Cell:
    """Return the result of a run; files that were altered are added to `altered`."""
    folder = board.run_folder(run)
    probes = {f"probe.{probe}": replace(run, probe=probe) for probe in (board.plan.probes if probed else ())}
    reasons = {one.name: why for one in (run, *probes.values()) if (why := board.altered(one))}
    altered |= reasons
    if reasons:
        return Cell(run.seed, "altered", folder.path.name, tuned=run.tuned)

    def state(one: PlannedRun) -> str:
        own = board.state(one)
        return "failed" if own == "waiting" and one.name in failed else own

    states = {name: state(one) for name, one in probes.items()}
    ended = state(run) if "waiting" not in states.values() or state(run) in LOST else "waiting"
    lost = [name for name, own in states.items() if own in LOST]
    history, scores = board.history(run), board.scores(run)
    more = board.examples(run), lost, 0 if history is None else history.tokens, run.tuned
    return Cell(run.seed, ended, folder.path.name, scores, curve_of(folder), *more)


def curve_of(folder: RunFolder) -> list[dict[str, float]]:
    """Return the validation scores of a run with their steps."""
    try:
        lines, _ = good_lines(read_bytes(folder / METRICS))
    except RunError:
        return []
    drawn, records = re.compile(r"step|tokens|valid\..*"), map(json.loads, lines)
    points = [{key: one for key, one in record.items() if drawn.fullmatch(key) and is_score(one)} for record in records]
    return [point for point in points if "step" in point and any(name.startswith("valid.") for name in point)]


def runs_report(folders: Sequence[Path], measure: Sequence[str], trust: bool, imports: Sequence[str]) -> StudyReport:
    """Return a report that compares runs with the first run. Runs that differ only in the seed form one arm.

    Raise UsageError for folders without a trained run.
    """
    grouped: dict[str, list[tuple[RunFolder, Recipe, History]]] = {}
    for path in dict.fromkeys(folders):
        folder = RunFolder(path)
        recipe, history = _trained(folder, trust, imports)
        data = plain(recipe)
        data["train"].pop("seed")
        grouped.setdefault(json.dumps(data, sort_keys=True, default=str), []).append((folder, recipe, history))
    groups = list(grouped.values())
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
    exact = history.parameters, cost.flops_per_token, cost.cache_bytes
    return ArmResult(name, tuple(cells), made_of, "", {}, {}, *exact, steps=history.steps)


def _name(runs: Sequence[tuple[RunFolder, Recipe, History]], groups: Sequence[object]) -> str:
    """Name a group of runs by its variants and overrides; a single run by its folder."""
    folder, _, history = runs[0]
    values = {key: one if isinstance(one, str) else json.dumps(one, default=str) for key, one in history.set.items()}
    words = [*history.variants, *(f"{key}={value}" for key, value in values.items() if key != "train.seed")]
    return f"{history.recipe} {' '.join(words)}".strip() if len(runs) > 1 and words else folder.path.name


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
    tables = list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]()
    for measure in [one for one in results.measure if one not in EXACT]:
        # without the space, an interval does not wrap at its comma
        cells = [[re.sub(r"(\[.*), (.*\])", r"\1,\2", row[key]) for key in COLUMNS] for row in report.rows(measure)]
        title = f"{measure} ({'more' if measure in results.rising else 'less'} is better)"
        tables.append((title, [*COLUMNS.values()], cells))
    tables += [(section.title, section.heads, section.rows) for section in report.screen()]
    exact = [measure for measure in results.measure if measure in EXACT and results.design is None]
    cells = [[arm.name, *(f"{arm.exact(measure):,}" for measure in exact)] for arm in results.own]
    tables += [("", ["variant", *exact], cells)] * bool(exact) + [("", *report.trend_rows())] * bool(report.trends)
    for title, heads, shown in tables:
        console.print()
        if title:
            say(console, title, "bold")
        rows(console, shown, heads)
    for row in report.claim_rows():
        console.print()
        paper = f" ({row['paper']})" if row["paper"] else ""
        say(console, f"claim: {row['says']} on {row['on']}{paper}: {row['verdict']}, n {row['n']}, {row['difference']}")
    for title, lines in report.lists().items():
        console.print()
        say(console, title, "bold")
        for name, why in lines:
            say(console, f"{name}: {why}")


# measure, and number with its decimals and its exponent
NUMBER = re.compile(r"\s*([\w.\-]+)\s*=\s*([-+]?(?=\.?\d)\d*\.?(\d*)(?:[eE]([-+]?\d+))?)\s*")


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
        if match is None:
            raise UsageError(f"--produced {text!r}: write a measure and a number: valid.loss=1.865")
        return cls(match[1], float(match[2]), 0.5 * 10.0 ** (int(match[4] or 0) - len(match[3])))

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
