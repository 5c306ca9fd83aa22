"""Scores of runs, grouped by arm, and comparisons of the arms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tfkit.core.errors import RunError
from tfkit.runs.folder import METRICS, RunFolder
from tfkit.runs.history import good_lines
from tfkit.storage.files import read_bytes, read_json
from tfkit.studies.board import Board, count_in
from tfkit.studies.plan import EXACT, Plan, PlannedRun
from tfkit.studies.run_list import is_score
from tfkit.studies.settings import BASELINE, PaperClaim
from tfkit.studies.statistics import (
    Comparison,
    Pool,
    Scale,
    Spread,
    claim_verdict,
    compared,
    half_digit,
    judged,
    pooled,
    spread,
    step_of,
)

FORMAT = 1
RESULTS = "results.json"
UNFINISHED = "not all planned runs have ended"
LOST = ("diverged", "failed")


@dataclass(frozen=True)
class Cell:
    """One run of an arm: done, diverged, failed, altered, or not ended yet (waiting, stopped).

    `curve` has the scores of its validations by step; `examples` counts the evaluated examples of each split; `lost`
    are the measures whose probe diverged or failed.
    """

    seed: int
    state: str
    folder: str
    scores: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[Mapping[str, float]] = ()
    examples: Mapping[str, int] = field(default_factory=dict)
    lost: Sequence[str] = ()
    tokens: int = 0  # read

    def has_lost(self, measure: str) -> bool:
        """True if the measure has no value because the run or its probe diverged or failed."""
        return self.state in LOST or measure in self.lost


@dataclass(frozen=True)
class ArmResult:
    """Results of one arm."""

    name: str
    cells: tuple[Cell, ...]
    made_of: str = ""  # variants and values
    same_as: str = ""
    solved: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    flops: int = 0
    cache_bytes: int = 0
    size: str = ""  # name in study.sizes

    def exact(self, measure: str) -> int:
        """Return a measure that is equal for all seeds; 0 if unknown."""
        return {"parameters": self.parameters, "flops": self.flops, "cache_bytes": self.cache_bytes}[measure]

    def values(self, measure: str) -> dict[int, float | None]:
        """Return a measure by seed, with None for diverged and failed runs and without unfinished runs."""
        ended = (cell for cell in self.cells if cell.has_lost(measure) or measure in cell.scores)
        return {cell.seed: None if cell.has_lost(measure) else cell.scores[measure] for cell in ended}

    def failed(self, measure: str) -> int:
        """Count the runs that have no value because they, or their probes, failed."""
        return sum(cell.has_lost(measure) and cell.state != "diverged" for cell in self.cells)

    def spread(self, measure: str) -> Spread | None:
        """Return the spread of a measure over the runs."""
        return spread([value for value in self.values(measure).values() if value is not None])


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its comparison, of the variant that it names first to the other, and its verdict."""

    claim: PaperClaim
    comparison: Comparison
    verdict: str


@dataclass(frozen=True)
class StudyContext:
    """Description of a study that its results are reported with: name, question, claims, and state of the plan."""

    name: str
    about: str = ""
    stated: Sequence[PaperClaim] = ()  # claims
    equal_within: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    altered: Mapping[str, str] = field(default_factory=dict)  # reasons why files are not trusted, by run
    changed: tuple[str, ...] = ()  # changes of the plan after results were seen
    planned: bool = False  # verdicts wait for all runs
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values tried in tuning, by key


@dataclass(frozen=True)
class Results(StudyContext):
    """All arms with their comparisons; the first arm of each size is the baseline there."""

    arms: tuple[ArmResult, ...] = ()
    measure: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    claims: tuple[ClaimResult, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs."""
        return tuple(dict.fromkeys(cell.seed for arm in self.arms for cell in arm.cells))

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes; empty without sizes."""
        return tuple(dict.fromkeys(arm.size for arm in self.arms if arm.size))

    def at(self, size: str) -> Results:
        """Return the results of one size."""
        arms = tuple(arm for arm in self.arms if arm.size == size)
        names = {arm.name for arm in arms}
        return replace(self, arms=arms, comparisons=tuple(one for one in self.comparisons if one.arm in names))

    @property
    def at_the_edge(self) -> dict[str, str]:
        """Tuned values by variant that are the smallest or largest value tried; a better value may lie beyond."""
        numbers = {key: [one for one in values if isinstance(one, int | float)] for key, values in self.tune.items()}
        ends = {key: (min(tried), max(tried)) for key, tried in numbers.items() if len(tried) > 1}
        edges = {
            arm.name: [f"{key}={value}" for key, value in arm.tuned.items() if value in ends.get(key, ())]
            for arm in self.own
            if next(iter(arm.values(self.measure[0]).values()), None) is not None  # not all values diverged
        }
        return {name: ", ".join(values) for name, values in edges.items() if values}

    @property
    def own(self) -> list[ArmResult]:
        """Arms with their own runs."""
        return [arm for arm in self.arms if not arm.same_as]

    @property
    def noise(self) -> dict[str, Spread | None]:
        """Noise floor: the spread of the baseline's runs by measure."""
        return {measure: self.arms[0].spread(measure) for measure in self.measure if measure not in EXACT}

    @property
    def tested(self) -> int:
        """Number of comparisons in Holm's correction."""
        all_compared = (*self.comparisons, *(one.comparison for one in self.claims))
        return len({(frozenset({one.arm, one.against}), one.measure) for one in all_compared if one.p is not None})

    def as_data(self) -> dict[str, Any]:
        """Return the contents of results.json."""
        return {
            "format": FORMAT,
            "study": self.name,
            "about": self.about,
            "baseline": self.arms[0].name,
            "seeds": list(self.seeds),
            "measures": [{"name": name, "more_is_better": name in self.rising} for name in self.measure],
            "arms": [self._arm_data(arm) for arm in self.arms],
            "noise": {name: None if found is None else asdict(found) for name, found in self.noise.items()},
            "tested": self.tested,
            "comparisons": [asdict(one) | {"words": one.words()} for one in self.comparisons],
            "claims": [
                {**one.claim.model_dump(), "verdict": one.verdict, "comparison": asdict(one.comparison)}
                for one in self.claims
            ],
            "failed": dict(self.failed),
            "altered": dict(self.altered),
            "plan_changed": list(self.changed),
            "tune": {key: list(values) for key, values in self.tune.items()},
            "at_the_edge": self.at_the_edge,
        }

    def _arm_data(self, arm: ArmResult) -> dict[str, Any]:
        spreads = {measure: arm.spread(measure) for measure in self.measure}
        return {
            "name": arm.name,
            "made_of": arm.made_of,
            "same_as": arm.same_as or None,
            "solved": dict(arm.solved),
            "tuned": dict(arm.tuned),
            "parameters": arm.parameters,
            "flops_per_token": arm.flops,
            "cache_bytes": arm.cache_bytes,
            "runs": [
                {"seed": cell.seed, "state": cell.state, "folder": cell.folder, "scores": dict(cell.scores)}
                for cell in arm.cells
            ],
            "spread": {name: None if found is None else asdict(found) for name, found in spreads.items()},
        }


def results_of(
    context: StudyContext, arms: Sequence[ArmResult], measure: Sequence[str], rising: Sequence[str]
) -> Results:
    """Compare all arms with the first one on every noisy measure, and judge the claims."""
    by_name = {arm.name: by for arm in arms for by in arms if by.name == (arm.same_as or arm.name)}
    bases = {arm.size: arm.name for arm in reversed(arms)}
    pairs = [
        (arm.name, bases[arm.size], one)
        for arm in arms
        if not arm.same_as and arm.name != bases[arm.size]
        for one in measure
        if one not in EXACT
    ]
    sides = [(*(by_name[side].name for side in claim.sides), claim.on) for claim in context.stated]
    family = list(dict.fromkeys([*pairs, *((a, b, on) for a, b, on in sides if (b, a, on) not in pairs)]))

    @cache
    def table(sizes: frozenset[str], measure: str) -> Table:
        return Table.of([arm for arm in arms if not arm.same_as and arm.size in sizes], measure, context, rising)

    sizes = [frozenset({by_name[arm].size, by_name[against].size}) for arm, against, _ in family]
    found = [table(own, one).compared(arm, against) for own, (arm, against, one) in zip(sizes, family, strict=True)]
    comparisons = judged(found, rising)
    known = {(one.arm, one.against, one.measure): one for one in comparisons}
    judged_claims = []
    for claim, (smaller, larger, on) in zip(context.stated, sides, strict=True):
        one = known[smaller, larger, on] if (smaller, larger, on) in known else _turned(known[larger, smaller, on])
        shown = _turned(one) if claim.is_greater else one
        judged_claims.append(ClaimResult(claim, shown, claim_verdict(one, on in rising)))
    return Results(
        **vars(context),
        arms=tuple(arms),
        measure=tuple(measure),
        rising=tuple(rising),
        comparisons=tuple(comparisons[: len(pairs)]),
        claims=tuple(judged_claims),
    )


@dataclass(frozen=True)
class Table:
    """Values of a measure by arm and seed, with the scale and the pooled variance of its comparisons."""

    arms: Mapping[str, ArmResult]
    measure: str
    scale: Scale
    pool: Pool | None
    pool_arms: Sequence[str]
    problem: str

    @classmethod
    def of(cls, arms: Sequence[ArmResult], measure: str, context: StudyContext, rising: Sequence[str]) -> Table:
        """Pool the variance of all arms that have a value for every seed of the first arm."""
        values = {arm.name: arm.values(measure) for arm in arms}
        seeds = [seed for seed, value in values[arms[0].name].items() if value is not None]
        whole = [name for name, own in values.items() if own.keys() == set(seeds) and None not in own.values()]
        cells = [cell for arm in arms for cell in arm.cells if measure in cell.scores]
        examples = min((count_in(cell.examples, measure) for cell in cells), default=0)
        step = step_of(measure, [cell.scores[measure] for cell in cells], examples)
        pool = None
        if len(seeds) > 1 and len(whole) > 1:
            matrix = np.array([[values[name][seed] for seed in seeds] for name in whole], float)
            pool = pooled(matrix, max(step, half_digit(float(np.abs(matrix).max()))))
        scale = Scale(step, measure in rising, context.equal_within.get(measure))
        ended = all(cell.state in (*LOST, "done", "altered") for arm in arms for cell in arm.cells)
        problem = "" if ended or not context.planned else UNFINISHED
        return cls({arm.name: arm for arm in arms}, measure, scale, pool, whole, problem)

    def compared(self, name: str, against: str) -> Comparison:
        """Compare two arms."""
        arm, other = self.arms[name], self.arms[against]
        pool = self.pool
        if pool is not None:
            places = [self.pool_arms.index(one) if one in self.pool_arms else None for one in (name, against)]
            fits = [place is not None and bool(pool.fits[place]) for place in places]
            pool = replace(pool, fits=np.array(fits))
        values, reference = arm.values(self.measure), other.values(self.measure)
        result = compared(name, against, self.measure, values, reference, self.scale, pool)
        lost, failed = result.lost, (arm.failed(self.measure), other.failed(self.measure))
        result = replace(result, runs=len(arm.cells), failed=failed[0], failed_against=failed[1])
        result = replace(result, diverged=lost[0] - failed[0], diverged_against=lost[1] - failed[1])
        altered = [cell.folder for one in (arm, other) for cell in one.cells if cell.state == "altered"]
        problem = f"{', '.join(altered)} {'was' if len(altered) == 1 else 'were'} altered" if altered else self.problem
        return replace(result, p=None, problem=problem) if problem else result


def _turned(one: Comparison) -> Comparison:
    """Swap the sides of a comparison."""
    return replace(
        one,
        arm=one.against,
        against=one.arm,
        mean=None if one.mean is None else -one.mean,
        low=None if one.high is None else -one.high,
        high=None if one.low is None else -one.low,
        ahead=not one.ahead,
        better=None if one.better is None else not one.better,
        diverged=one.diverged_against,
        diverged_against=one.diverged,
        failed=one.failed_against,
        failed_against=one.failed,
    )


def study_results(plan: Plan, folder: Path, failed: Mapping[str, str] | None = None) -> Results:
    """Return the current results in a study's folder.

    `failed` has the reasons of failed runs by name; None reads them from the last report in the folder.
    """
    failed = _known_failures(folder) if failed is None else failed
    board = Board(plan, folder)
    best, altered = board.best(), dict[str, str]()
    arms = []
    for arm in plan.arms:
        own = plan.arm(arm.name)
        tuned = best.get(own.name, plan.grid[0])
        runs = [PlannedRun(own.name, seed, tuned) for seed in plan.seeds]
        tuning = {run.name: board.altered(run) for run in plan.tuning(own)} if len(plan.grid) > 1 else {}
        altered |= {name: why for name, why in tuning.items() if why}
        made_of = " ".join([*arm.variants, *(f"{key}={value}" for key, value in arm.values.items())])
        cells = tuple(_cell(board, run, failed, altered) for run in runs)
        if any(tuning.values()):  # an altered run decided its tuned values
            cells = tuple(replace(cell, state="altered", scores={}) for cell in cells)
        arms.append(
            ArmResult(
                arm.name,
                cells,
                made_of if arm.name != BASELINE else made_of or "the recipe as it is",
                arm.same_as,
                arm.solved,
                best.get(own.name, {}),
                arm.parameters,
                arm.flops,
                arm.cache_bytes,
                arm.size,
            )
        )
    context = StudyContext(
        plan.name, plan.about, plan.claims, plan.equal_within, failed, altered, plan.changed, True, plan.tune
    )
    return results_of(context, arms, plan.measure, plan.rising)


def _known_failures(folder: Path) -> dict[str, str]:
    """Return the failed runs of the last report; empty if there is none."""
    try:
        known = read_json(folder / RESULTS) if (folder / RESULTS).is_file() else {}
    except RunError:
        return {}
    failed = known.get("failed") if isinstance(known, dict) else None
    return {str(name): str(why) for name, why in failed.items()} if isinstance(failed, dict) else {}


def _cell(board: Board, run: PlannedRun, failed: Mapping[str, str], altered: dict[str, str]) -> Cell:
    """Return the result of a run; files that were altered are added to `altered`."""
    folder = board.run_folder(run)
    probes = {f"probe.{probe}": replace(run, probe=probe) for probe in board.plan.probes}
    reasons = {one.name: why for one in (run, *probes.values()) if (why := board.altered(one))}
    altered |= reasons
    if reasons:
        return Cell(run.seed, "altered", folder.path.name)

    def state(one: PlannedRun) -> str:
        own = board.state(one)
        return "failed" if own == "waiting" and one.name in failed else own

    states = {name: state(one) for name, one in probes.items()}
    ended = state(run) if "waiting" not in states.values() or state(run) in LOST else "waiting"
    lost = [name for name, own in states.items() if own in LOST]
    history, scores = board.history(run), board.scores(run)
    tokens = 0 if history is None else history.tokens
    return Cell(run.seed, ended, folder.path.name, scores, curve_of(folder), board.examples(run), lost, tokens)


def curve_of(folder: RunFolder) -> list[dict[str, float]]:
    """Return the validation scores of a run with their steps."""
    try:
        lines, _ = good_lines(read_bytes(folder / METRICS))
    except RunError:
        return []
    records = map(json.loads, lines)
    points = [{name: value for name, value in record.items() if is_score(value)} for record in records]
    return [
        {name: value for name, value in point.items() if name in ("step", "tokens") or name.startswith("valid.")}
        for point in points
        if "step" in point and any(name.startswith("valid.") for name in point)
    ]
