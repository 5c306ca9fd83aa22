"""The plan of a study: its arms with equal budgets, its runs, and the digests that identify them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict

from tfkit.core.bounds import ARMS, SEEDS, TRIALS
from tfkit.core.options import PositiveInt, Seed
from tfkit.recipe.load import Recipe
from tfkit.runs.folder import value_word
from tfkit.studies.arms import Arm, plain, slug, without_seed
from tfkit.studies.design_section import DesignPlan as DesignPlan
from tfkit.studies.process import Timing
from tfkit.studies.settings import MORE, STEPS, Keep, Match, PaperClaim
from tfkit.training.progress import duration


def identity(recipe: Recipe, match: Match | None = None) -> str:
    """Hash a recipe and the budget of its runs. The folder of the recipe does not change the hash."""
    home = str(Path.cwd() if recipe.file is None else recipe.file.resolve().parent)
    budget = None if match is None else match.model_dump()
    data = without_seed(plain(recipe))
    data["train"]["parallel"] |= {"pieces": "none"}  # a removed key that earlier versions hash
    if not data["generate"]["invariant"]:
        del data["generate"]["invariant"]  # a newer key
    text = json.dumps([data, budget], sort_keys=True, default=str)
    return hashlib.sha256(text.replace(json.dumps(home)[1:-1], ".").encode()).hexdigest()


RUNS, PLAN = "runs", "study.json"
EXACT = ("parameters", "flops", "cache_bytes")  # measures without noise, which are not tested
FORMAT = 1


@dataclass(frozen=True)
class PlannedRun:
    """One run to train: its arm, seed, and tuned values by key."""

    arm: str
    seed: int
    tuned: Mapping[str, Any] = field(default_factory=dict, hash=False)
    probe: str = ""  # corpus of the probe; empty for a run on the data of the study

    @property
    def name(self) -> str:
        """Name of its folder."""
        words = [slug(self.arm), *(value_word(key, value) for key, value in self.tuned.items()), f"s{self.seed}"]
        return "-".join([*words, *[f"probe-{self.probe}"] * bool(self.probe)])


SCREEN, CONFIRM = "screen", "confirm"  # stages of a design


@dataclass(frozen=True)
class Plan:
    """A study that is ready to run; the contents of study.json.

    `identity` is a hash of the baseline's recipe: a folder belongs to one study.
    """

    name: str
    identity: str
    arms: Annotated[tuple[Arm, ...], Field(max_length=ARMS.most)]
    seeds: Annotated[tuple[Annotated[Seed, Strict()], ...], Field(max_length=SEEDS.most)]
    # combinations of tuned values; one empty mapping: no tuning
    grid: Annotated[tuple[Mapping[str, Any], ...], Field(max_length=TRIALS.most)]
    measure: tuple[str, ...]
    steps: Annotated[PositiveInt, Strict()]
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # probe -> its overrides by key
    rising: tuple[str, ...] = ()  # measures for which larger is better
    timing: Timing = field(default_factory=Timing)
    digests: Mapping[str, str] = field(default_factory=dict)  # of each arm's recipe
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # differences of each arm from the baseline
    about: str = ""
    claims: tuple[PaperClaim, ...] = ()
    equal_within: Mapping[str, float] = field(default_factory=dict)  # margins of equality by measure
    keep: Keep = "all"  # files of finished runs
    text: str = ""  # of the study's file
    made: str = ""  # time of the first plan
    more: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # values beyond the grid by open key
    tuned_by: str = ""  # measure that tuning goes by; empty in older plans: the first
    changed: tuple[str, ...] = ()  # changes after results were seen
    notes: tuple[str, ...] = ()  # warnings, printed with the plan
    design: DesignPlan | None = None
    format: int = FORMAT

    def arm(self, name: str) -> Arm:
        """Return the arm with this name, or the equal arm that is trained in its place."""
        arm = next(arm for arm in self.arms if arm.name == name)
        return self.arm(arm.same_as) if arm.same_as else arm

    def base(self, arm: Arm) -> Arm:
        """Return the baseline at the size of an arm."""
        return next(one for one in self.arms if one.size == arm.size)

    @property
    def trained(self) -> list[Arm]:
        """Arms with their own runs."""
        return [arm for arm in self.arms if not arm.same_as]

    def seeds_of(self, arm: Arm) -> tuple[int, ...]:
        """Return the seeds of an arm. The baseline of a design has none if its noise is that of another folder."""
        return arm.seeds if self.design else arm.seeds or self.seeds

    def options_of(self, arm: Arm) -> tuple[str, ...]:
        """Return the options of a design's cell."""
        return arm.variants[len(self.arms[0].variants) :]

    def tuning(self, arm: Arm) -> list[PlannedRun]:
        """Return the tuning runs of an arm, on its first seed. Cells of a screen have the baseline's values."""
        seeds = () if arm.stage == SCREEN and self.grid != ({},) else self.seeds_of(arm)[:1]
        return [PlannedRun(arm.name, seed, values) for seed in seeds for values in self.grid]

    def runs_each(self, arm: Arm) -> int:
        """Return the number of trainings of an arm."""
        tuning, seeds = len(self.tuning(arm)), len(self.seeds_of(arm))
        return tuning + seeds - bool(tuning) + len(self.probes) * seeds

    @property
    def most_runs(self) -> int:
        """Number of trainings in total, with those that depend on a screen."""
        later = self.design.confirm.runs * len(self.grid) if self.design and not self.design.chosen else 0
        return sum(map(self.runs_each, self.trained)) + later

    @property
    def tune(self) -> dict[str, list[Any]]:
        """Values tried for each variant, by key."""
        return {key: list(dict.fromkeys(values[key] for values in self.grid)) for key in self.grid[0]}

    def seconds(self, arm: Arm) -> float | None:
        """Estimate the duration of an arm's run from its FLOPs and steps; None without a timing."""
        if not self.timing.seconds_per_step:
            return None
        baseline = self.arms[0]
        work = arm.flops / baseline.flops if baseline.flops else 1.0
        return self.timing.overhead + self.timing.seconds_per_step * work * self.steps_of(arm)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and rows of the table of planned arms, with one row for each stage of a design."""
        solved = list(dict.fromkeys(key for arm in self.arms for key in arm.solved))
        keys = [key.rpartition(".")[2] for key in solved]
        stages = [[arm for arm in self.arms if arm.stage == stage] for stage in (SCREEN, CONFIRM)]
        cells = []
        for arms in [[arm] for arm in self.arms if not arm.stage] + [stage for stage in stages if stage]:
            arm, seconds = arms[0], [self.seconds(arm) for arm in arms if not arm.same_as]
            values = [_span(arm.solved[key] for arm in arms if key in arm.solved) for key in solved]
            count = f"= {arm.same_as}" if arm.same_as else f"{sum(map(self.runs_each, arms)):,}"
            time = duration(sum(filter(None, seconds)) / len(arms)) if any(seconds) else ""
            name = f"{len(arms)} cells to {arm.stage}" if arm.stage else arm.name
            costs = _span(arm.parameters for arm in arms), _span(arm.flops for arm in arms)
            cells.append([name, count, *costs, *values, time])
        return ["variant", "runs", "parameters", "FLOPs/token", *keys, "time each"], cells

    def summary(self, jobs: int) -> str:
        """Summarize the number of runs and the estimated time."""
        text = f"{self.most_runs:,} runs of {len(self.trained)} variants; seeds {', '.join(map(str, self.seeds))}"
        if (design := self.design) is not None:
            noise, few = len(self.seeds_of(self.arms[0])), ", ".join(design.chosen) or f"at most {design.confirm.most}"
            text = f"{design.runs} runs to screen {len(design.options)} options, {noise} of noise, "
            text += f"{design.confirm.runs} to confirm {few}"
            text += "".join(f"; {one} excludes {other}" for one, other in design.excluded)
        if self.grid != ({},):
            more = f" and up to {MORE} more" if self.more else ""
            tried = "the baseline and each cell to confirm" if design else f"seed {self.seeds[0]}"
            text += f"; {len(self.grid)} tuned values{more}, tried on {tried}"
        if not self.timing.seconds_per_step:
            return text
        each = [self.seconds(arm) or 0.0 for arm in self.trained]
        total = duration(sum(each) / len(each) * self.most_runs / jobs)
        return f"{text}; about {total}" + (f" with {jobs} at a time" if jobs > 1 else "")

    def steps_of(self, arm: Arm) -> int:
        """Return the optimizer steps of a run on the study's own data."""
        return arm.steps or self.steps

    def values(self, run: PlannedRun) -> dict[str, Any]:
        """Return the overrides of a run by key."""
        probe = self.probes[run.probe] if run.probe else {}
        return self.arm(run.arm).all_values({**run.tuned, **probe, "train.seed": run.seed})

    def run_steps(self, run: PlannedRun) -> int:
        """Return the optimizer steps of a run."""
        return int(self.values(run).get(STEPS, self.steps_of(self.arm(run.arm))))

    @property
    def problem(self) -> str:
        """First problem in the plan, whose file may have been edited; empty if it is valid."""
        if self.format != FORMAT:
            return f"format: {self.format} is not supported; this version reads {FORMAT}"
        empty = [name for name in ("arms", "seeds", "grid", "measure") if not getattr(self, name)]
        if empty:
            return f"{' and '.join(empty)}: must not be empty"
        known: set[str] = set()
        for arm in self.arms:
            if arm.same_as and arm.same_as not in known:
                return f"arms: '{arm.name}' is the same as '{arm.same_as}', which must be listed before it"
            known.add(arm.name)
        options = {*(self.design.options if self.design else ())}
        asked = {*(self.design.chosen if self.design else ())}
        stages = [arm.stage for arm in self.arms]
        for arm in self.arms:
            if arm.stage not in ("", SCREEN, CONFIRM) or (arm.stage and not {*self.options_of(arm)} <= options):
                return f"arms: '{arm.name}' is no cell of the design"
        if self.design and (stages[0] or SCREEN not in stages):
            return "arms: a baseline and cells to screen must be first"
        if not asked <= options or (asked and CONFIRM not in stages):
            return f"design.chosen: no cells confirm {', '.join(sorted(asked))}"
        known |= options
        unknown = [side for claim in self.claims for side in claim.sides if side not in known]
        unknown += [claim.on for claim in self.claims if claim.on not in self.measure]
        return f"claims: '{unknown[0]}' is not compared" if unknown else ""

    def other(self, before: Plan) -> str:
        """Describe the runs of the earlier plan if they are not those of this study, else return an empty string."""
        if before.name != self.name:
            return f"the study '{before.name}'"
        if before.identity != self.identity:
            return "the runs of another study: its baseline or its budget differs"
        changed = [arm for arm, digest in self.digests.items() if before.digests.get(arm, digest) != digest]
        return f"runs of another '{changed[0]}' than this study's" if changed else ""


def _span(values: Iterable[int]) -> str:
    """Format the range of some numbers."""
    known = sorted(values)
    return " to ".join(f"{value:,}" for value in dict.fromkeys(known[:1] + known[-1:]))


def runs_of(
    plan: Plan, best: Mapping[str, Mapping[str, Any]], tuning: Callable[[Arm], list[PlannedRun]] | None = None
) -> Iterator[PlannedRun]:
    """Yield the tuning runs, then the runs of each tuned arm, seed by seed."""
    for arm in plan.trained:
        yield from (tuning or plan.tuning)(arm)
    for seed in plan.seeds:
        for arm in plan.trained:
            if arm.name in best and seed in plan.seeds_of(arm):
                yield PlannedRun(arm.name, seed, best[arm.name])
                yield from (PlannedRun(arm.name, seed, best[arm.name], probe) for probe in plan.probes)
