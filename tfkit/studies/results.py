"""Measurements of a study's runs, or of any runs, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError
from tfkit.recipe.settings.study import BASELINE, PaperClaim
from tfkit.storage.files import read_bytes
from tfkit.studies.board import Board
from tfkit.studies.plan import Plan, PlannedRun
from tfkit.studies.run_list import is_score
from tfkit.studies.statistics import Comparison, Spread, claim_verdict, compared, judged, share_step, spread
from tfkit.training.folder import METRICS, RunFolder
from tfkit.training.metrics_log import good_lines

FORMAT = 1
EXACT = ("parameters", "flops", "cache_bytes")  # equal for all seeds, not tested


@dataclass(frozen=True)
class Cell:
    """One run of an arm: done, diverged, or missing.

    `curve` has the scores of its validations by step; `examples` counts the evaluated examples of each split.
    """

    seed: int
    state: str
    folder: str
    scores: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[Mapping[str, float]] = ()
    examples: Mapping[str, int] = field(default_factory=dict)

    def examples_of(self, measure: str) -> int:
        """Return the number of examples of a measure; 0 if unknown."""
        return self.examples.get(measure, self.examples.get(measure.partition(".")[0], 0))


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

    def exact(self, measure: str) -> int:
        """Return a measure that is equal for all seeds; 0 if unknown."""
        return {"parameters": self.parameters, "flops": self.flops, "cache_bytes": self.cache_bytes}[measure]

    def values(self, measure: str) -> dict[int, float | None]:
        """Return a measure by seed: None for diverged runs; missing runs are omitted."""
        there = (cell for cell in self.cells if cell.state == "diverged" or measure in cell.scores)
        return {cell.seed: None if cell.state == "diverged" else cell.scores[measure] for cell in there}

    def spread(self, measure: str) -> Spread | None:
        """Return the spread of a measure over the runs."""
        return spread([value for value in self.values(measure).values() if value is not None])


@dataclass(frozen=True)
class ClaimResult:
    """A claim and its verdict."""

    claim: PaperClaim
    comparison: Comparison
    verdict: str


@dataclass(frozen=True)
class Results:
    """All arms with their comparisons; the first is the baseline."""

    name: str
    about: str
    arms: tuple[ArmResult, ...]
    measure: tuple[str, ...]
    rising: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    claims: tuple[ClaimResult, ...] = ()
    seeds: tuple[int, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def own(self) -> list[ArmResult]:
        """Arms that do not equal an earlier one."""
        return [arm for arm in self.arms if not arm.same_as]

    @property
    def noise(self) -> dict[str, Spread | None]:
        """Noise floor: the spread of the baseline's runs by measure."""
        return {measure: self.arms[0].spread(measure) for measure in self.measure if measure not in EXACT}

    @property
    def tested(self) -> int:
        """Number of comparisons in Holm's correction."""
        return sum(one.p is not None for one in self.comparisons) + sum(
            one.comparison.p is not None and not self._is_listed(one.comparison) for one in self.claims
        )

    def _is_listed(self, comparison: Comparison) -> bool:
        return any(
            (one.arm, one.against, one.measure) == (comparison.arm, comparison.against, comparison.measure)
            for one in self.comparisons
        )

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
    name: str,
    arms: Sequence[ArmResult],
    measure: Sequence[str],
    rising: Sequence[str],
    claims: Sequence[PaperClaim] = (),
    about: str = "",
    failed: Mapping[str, str] | None = None,
) -> Results:
    """Compare all arms with the first one on every noisy measure, and judge the claims."""
    by_name = {arm.name: by for arm in arms for by in arms if by.name == (arm.same_as or arm.name)}
    pairs = [
        (arm.name, arms[0].name, one) for arm in arms[1:] if not arm.same_as for one in measure if one not in EXACT
    ]
    asked = [(*(by_name[side].name for side in claim.sides), claim.on) for claim in claims]
    family = list(dict.fromkeys([*pairs, *((a, b, on) for a, b, on in asked if (a, b, on) not in _mirrored(pairs))]))
    found = judged([_compared(by_name, *one) for one in family], rising)
    known = {(one.arm, one.against, one.measure): one for one in found}
    judged_claims = []
    for claim, (smaller, larger, on) in zip(claims, asked, strict=True):
        one = known[smaller, larger, on] if (smaller, larger, on) in known else _turned(known[larger, smaller, on])
        judged_claims.append(ClaimResult(claim, one, claim_verdict(one, on in rising)))
    seeds = tuple(dict.fromkeys(cell.seed for arm in arms for cell in arm.cells))
    return Results(
        name,
        about,
        tuple(arms),
        tuple(measure),
        tuple(rising),
        tuple(found[: len(pairs)]),
        tuple(judged_claims),
        seeds,
        failed or {},
    )


def _compared(arms: Mapping[str, ArmResult], arm: str, against: str, measure: str) -> Comparison:
    """Compare two arms; accuracies get the step of one example."""
    cells = [cell for name in (arm, against) for cell in arms[name].cells if measure in cell.scores]
    examples = min((cell.examples_of(measure) for cell in cells), default=0)
    step = share_step([cell.scores[measure] for cell in cells], examples) if examples else 0.0
    return compared(arm, against, measure, arms[arm].values(measure), arms[against].values(measure), step)


def _mirrored(pairs: Iterable[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    return {(against, arm, measure) for arm, against, measure in pairs}


def _turned(one: Comparison) -> Comparison:
    """Swap the sides of a comparison."""
    signs = {name: None if (value := getattr(one, name)) is None else -value for name in SIGNED}
    return Comparison(
        one.against,
        one.arm,
        one.measure,
        one.n,
        one.runs,
        mean=signs["mean"],
        low=signs["high"],
        high=signs["low"],
        boot_low=signs["boot_high"],
        boot_high=signs["boot_low"],
        p=one.p,
        p_holm=one.p_holm,
        diverged=one.diverged_against,
        diverged_against=one.diverged,
    )


SIGNED = ("mean", "low", "high", "boot_low", "boot_high")


def study_results(plan: Plan, folder: Path, failed: Mapping[str, str] | None = None) -> Results:
    """Return the current results in a study's folder."""
    board = Board(plan, folder)
    best = board.best()
    arms = []
    for arm in plan.arms:
        tuned = best.get(plan.arm(arm.name).name, plan.grid[0])
        runs = [PlannedRun(plan.arm(arm.name).name, seed, tuned) for seed in plan.seeds]
        made_of = " ".join([*arm.variants, *(f"{key}={value}" for key, value in arm.values.items())])
        cells = tuple(_cell(board, run) for run in runs)
        arms.append(
            ArmResult(
                arm.name,
                cells,
                made_of if arm.name != BASELINE else made_of or "the recipe as it is",
                arm.same_as,
                arm.solved,
                tuned,
                arm.parameters,
                arm.flops,
                arm.cache_bytes,
            )
        )
    return results_of(plan.name, arms, plan.measure, plan.rising, plan.claims, plan.about, failed)


def _cell(board: Board, run: PlannedRun) -> Cell:
    folder = board.run_folder(run)
    return Cell(run.seed, board.state(run), folder.path.name, board.scores(run), curve_of(folder), board.examples(run))


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
