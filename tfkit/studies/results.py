"""Scores of runs, grouped by arm, and comparisons of the arms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from tfkit.studies import statistics
from tfkit.studies.board import count_in
from tfkit.studies.design import aliases
from tfkit.studies.design_section import BASELINE, DesignPlan
from tfkit.studies.effects import Effect, confirmed, effects, interactions
from tfkit.studies.plan import CONFIRM, EXACT, SCREEN
from tfkit.studies.settings import PaperClaim
from tfkit.studies.statistics import Comparison, Pool, Scale, Spread, claim_verdict, half_digit

FORMAT = 1
Key = tuple[str, str, str]  # of a comparison: arm, against, measure
WITHOUT = "without"  # what an option of a design is compared with
RESULTS = "results.json"
UNFINISHED, NOT_CHOSEN = "not all planned runs have ended", "the screen did not choose it"
LOST = ("diverged", "failed")
REFUTED = ("not held", "reversed", "not replicated")  # the last two in a study done again
# reservations about verdicts
CHANGED, EARLY, UNTUNED, EDGE = "plan changed", "seen before the plan", "untuned", "best at the edge"


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
    tuned: Mapping[str, object] = field(default_factory=dict)

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
    size: str = ""  # name in study.sizes, its budget, or both: small-300
    early: bool = False  # runs began before the plan was made
    tried: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values tried in tuning, by key
    steps: int = 0
    stage: str = ""  # of a design's cell: screen or confirm
    options: tuple[str, ...] = ()  # of a design's cell
    tries: tuple[Cell, ...] = ()  # tuning runs
    mark: str = ""  # reservation about its verdicts

    @property
    def place(self) -> str:
        """Size and budget in words: small, 300 steps."""
        name, _, steps = self.size.rpartition("-")
        words = [name] * bool(name) + [f"{self.steps:,} steps"]
        return ", ".join(words) if steps == str(self.steps) else self.size

    @property
    def edge(self) -> str:
        """Tuned values that are the smallest or largest tried; empty if the arm diverged with all."""
        numbers = {key: [one for one in values if type(one) in (int, float)] for key, values in self.tried.items()}
        ends = {key: (min(tried), max(tried)) for key, tried in numbers.items() if len(tried) > 1}
        is_known = any(cell.state == "done" for cell in self.cells)
        return ", ".join(f"{key}={one}" for key, one in self.tuned.items() if is_known and one in ends.get(key, ()))

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
        return statistics.spread([value for value in self.values(measure).values() if value is not None])


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its comparison, of the variant that it names first to the other, and its verdict."""

    claim: PaperClaim
    comparison: Comparison
    verdict: str


@dataclass(frozen=True)
class DesignResults:
    """Results of a design besides the comparisons of its options; effects are there when their stage has ended."""

    runs: Mapping[str, tuple[int, int]]  # by stage: ended, planned
    chosen: Sequence[str]
    excluded: Sequence[Sequence[str]]  # options that no valid recipe combines
    diverged: Mapping[str, Sequence[int]]  # by option: runs with it, of; without it, of
    aliases: Mapping[str, Sequence[str]]  # what the effect of an option cannot be told from in the screen
    effects: Mapping[str, Sequence[Effect]]  # in the screen, by measure
    interactions: Mapping[str, Sequence[Effect]]  # of two chosen options in the fresh runs, by measure


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
    tuned_by: str = ""  # measure that tuning goes by
    early: Mapping[str, str] = field(default_factory=dict)  # starts of the runs that began before the plan was made


@dataclass(frozen=True)
class Results(StudyContext):
    """All arms with their comparisons; the first arm of each size is the baseline there."""

    arms: tuple[ArmResult, ...] = ()
    measure: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    design: DesignResults | None = None

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
        return {arm.name: arm.edge for arm in self.own if arm.edge}

    @property
    def own(self) -> list[ArmResult]:
        """Arms with their own runs."""
        return [arm for arm in self.arms if not arm.same_as]

    @property
    def shown(self) -> list[ArmResult]:
        """Arms with their own runs; of a design, the baseline, and the confirmed options, without runs."""
        options = dict.fromkeys(one.arm for one in self.comparisons)
        return [self.arms[0], *(ArmResult(name, ()) for name in options)] if self.design else self.own

    @property
    def noise(self) -> dict[str, Spread | None]:
        """Noise floor: the spread of the baseline's runs by measure."""
        return {measure: self.arms[0].spread(measure) for measure in self.measure if measure not in EXACT}

    @property
    def tested(self) -> int:
        """Number of comparisons in Holm's correction."""
        all_compared = (*self.comparisons, *(one.comparison for one in self.claims))
        return len({(frozenset({one.arm, one.against}), one.measure) for one in all_compared if one.p is not None})

    @property
    def is_refuted(self) -> bool:
        """True if a claim did not hold, or runs were altered."""
        return bool(self.altered) or any(one.verdict in REFUTED for one in self.claims)

    def as_data(self) -> dict[str, Any]:
        """Return the contents of results.json."""
        seen = {arm.name: {"size": arm.size or None, "steps": arm.steps} for arm in self.arms}
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
            "comparisons": [
                asdict(one) | {"words": one.words()} | seen.get(one.arm, seen[self.arms[0].name])
                for one in self.comparisons
            ],
            "claims": [
                {**one.claim.model_dump(), "verdict": one.verdict, "comparison": asdict(one.comparison)}
                for one in self.claims
            ],
            "failed": dict(self.failed),
            "altered": dict(self.altered),
            "plan_changed": list(self.changed),
            "seen_before_the_plan": dict(self.early),
            "tune": {key: list(values) for key, values in self.tune.items()},
            "tuned_by": self.tuned_by,
            "at_the_edge": self.at_the_edge,
            **({"design": asdict(self.design)} if self.design else {}),
        }

    def _arm_data(self, arm: ArmResult) -> dict[str, Any]:
        spreads = {measure: arm.spread(measure) for measure in self.measure}
        return {
            "name": arm.name,
            "made_of": arm.made_of,
            "same_as": arm.same_as or None,
            "solved": dict(arm.solved),
            "tuned": dict(arm.tuned),
            "tried": {key: list(values) for key, values in arm.tried.items()},
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
    context: StudyContext,
    arms: Sequence[ArmResult],
    measure: Sequence[str],
    rising: Sequence[str],
    design: DesignPlan | None = None,
) -> Results:
    """Compare all arms with the first one on every noisy measure, or a design by options, and judge the claims."""
    by_name = {arm.name: by for arm in arms for by in arms if by.name == (arm.same_as or arm.name)}
    names, bases = {name: arm.name for name, arm in by_name.items()}, {arm.size: arm.name for arm in reversed(arms)}
    noisy, own = [one for one in measure if one not in EXACT], [arm for arm in arms if arm.stage != SCREEN]

    @cache
    def table(sizes: frozenset[str], measure: str) -> Table:
        return Table.of([arm for arm in own if not arm.same_as and arm.size in sizes], measure, context, rising)

    def compare(arm: str, against: str, measure: str) -> Comparison:
        if design is not None:
            missing = NOT_CHOSEN if design.chosen else UNFINISHED
            return known.get((arm, against, measure), Comparison(arm, against, measure, 0, 0, problem=missing))
        return table(frozenset({by_name[arm].size, by_name[against].size}), measure).compared(arm, against)

    others = [arm.name for arm in arms if not arm.same_as and arm.name != bases[arm.size]]
    pairs = [(name, bases[by_name[name].size], one) for name in others for one in noisy]
    known, of_design = dict[Key, Comparison](), None
    if design is not None:
        known, of_design = _by_option(arms, [table(frozenset({""}), one) for one in noisy], design)
        pairs, names = list(known), {BASELINE: WITHOUT}
    sides = [(*(names.get(side, side) for side in claim.sides), claim.on) for claim in context.stated]
    family = list(dict.fromkeys([*pairs, *((a, b, on) for a, b, on in sides if (b, a, on) not in pairs)]))
    comparisons = [
        replace(one, mark="; ".join(_marks(one, context, own if design else [by_name[one.arm], by_name[one.against]])))
        for one in statistics.judged([compare(*key) for key in family], rising)
    ]
    return Results(
        **vars(context),
        arms=tuple(arms),
        measure=tuple(measure),
        rising=tuple(rising),
        comparisons=tuple(comparisons[: len(pairs)]),
        claims=tuple(_claims(context.stated, sides, comparisons, rising)),
        design=of_design,
    )


def _by_option(
    arms: Sequence[ArmResult], tables: Sequence[Table], design: DesignPlan
) -> tuple[dict[Key, Comparison], DesignResults]:
    """Compare the fresh runs with each chosen option to those without it; `tables` has a table for each measure."""
    screen, fresh = (
        [(arm.options, cell) for arm in arms if arm.stage == stage for cell in arm.cells] for stage in (SCREEN, CONFIRM)
    )
    ended = [sum(cell.state != "waiting" for _, cell in runs) for runs in (screen, fresh)]
    lost = [(own, cell.state == "diverged") for own, cell in (*screen, *fresh)]
    sides = {one: [[gone for own, gone in lost if (one in own) == has] for has in (1, 0)] for one in design.options}
    found, screened, pairs = list[Comparison](), dict[str, list[Effect]](), dict[str, list[Effect]]()
    for table in tables:
        name, noise = table.measure, [one for one in arms[0].values(table.measure).values() if one is not None]
        before, after = (
            ([own for own, _ in runs], [cell.scores.get(name) for _, cell in runs]) for runs in (screen, fresh)
        )
        problem = _altered(table.arms.values()) or table.problem
        problem = problem or UNFINISHED * any(cell.state == "failed" for _, cell in fresh)  # it did not diverge
        if ended[0] == len(screen):
            screened[name] = effects(*before, design.options, noise=noise)
        if design.chosen and not problem:
            found += confirmed(name, *after, design.chosen, noise, table.scale)
            pairs[name] = interactions(*after, design.chosen, noise)
        else:
            found += [Comparison(one, WITHOUT, name, 0, len(fresh), problem=problem) for one in design.chosen]
    of_design = DesignResults(
        {SCREEN: (ended[0], len(screen)), CONFIRM: (ended[1], len(fresh))},
        design.chosen,
        design.excluded,
        {name: [count for side in own for count in (sum(side), len(side))] for name, own in sides.items()},
        aliases([options for options, _ in screen], design.groups),
        screened,
        pairs,
    )
    return {(one.arm, one.against, one.measure): one for one in found}, of_design


def _claims(
    claims: Sequence[PaperClaim],
    sides: Sequence[tuple[str, ...]],
    comparisons: Sequence[Comparison],
    rising: Sequence[str],
) -> Iterator[ClaimResult]:
    """Judge claims, whose smaller and larger side and measure are `sides`."""
    known = {(one.arm, one.against, one.measure): one for one in comparisons}
    for claim, (smaller, larger, on) in zip(claims, sides, strict=True):
        one = known[smaller, larger, on] if (smaller, larger, on) in known else _turned(known[larger, smaller, on])
        yield ClaimResult(claim, _turned(one) if claim.is_greater else one, claim_verdict(one, on in rising))


def _marks(one: Comparison, context: StudyContext, sides: Sequence[ArmResult]) -> Iterator[str]:
    """Yield the reservations about a verdict."""
    yield from [CHANGED] * bool(context.changed)
    yield from [EARLY] * any(arm.early for arm in sides)
    yield from dict.fromkeys(arm.mark for arm in sides if arm.mark)
    if context.planned and one.verdict != "open":
        yield from [EDGE if context.tune else UNTUNED] * (not context.tune or any(arm.edge for arm in sides))


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
        step = statistics.step_of(measure, [cell.scores[measure] for cell in cells], examples)
        pool = None
        if len(seeds) > 1 and len(whole) > 1:
            matrix = np.array([[values[name][seed] for seed in seeds] for name in whole], float)
            pool = statistics.pooled(matrix, max(step, half_digit(float(np.abs(matrix).max()))))
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
        result = statistics.compared(name, against, self.measure, values, reference, self.scale, pool)
        lost, failed = result.lost, (arm.failed(self.measure), other.failed(self.measure))
        result = replace(result, runs=len(arm.cells), failed=failed[0], failed_against=failed[1])
        result = replace(result, diverged=lost[0] - failed[0], diverged_against=lost[1] - failed[1])
        problem = _altered([arm, other]) or self.problem
        return replace(result, p=None, problem=problem) if problem else result


def _altered(arms: Iterable[ArmResult]) -> str:
    altered = [cell.folder for arm in arms for cell in arm.cells if cell.state == "altered"]
    return f"{', '.join(altered)} {'was' if len(altered) == 1 else 'were'} altered" if altered else ""


def _turned(one: Comparison) -> Comparison:
    """Swap the sides of a comparison."""
    mean, low, high = (None if value is None else -value for value in (one.mean, one.high, one.low))
    sides: dict[str, Any] = {"arm": one.against, "against": one.arm}
    sides |= {"failed": one.failed_against, "failed_against": one.failed}
    sides |= {"diverged": one.diverged_against, "diverged_against": one.diverged, "ahead": not one.ahead}
    better, bounds = None if one.better is None else not one.better, one.bounds and [-end for end in one.bounds[::-1]]
    return replace(one, **sides, mean=mean, low=low, high=high, better=better, bounds=bounds)
