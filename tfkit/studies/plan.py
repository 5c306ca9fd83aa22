"""The plan of a study: its arms with equal budgets, its runs, and the digests that identify them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict

from tfkit.core.bounds import ARMS, SEEDS, TRIALS
from tfkit.core.options import PositiveInt, Seed
from tfkit.recipe.load import Recipe
from tfkit.runs.folder import value_word
from tfkit.studies.arms import Arm, plain, slug, without_seed
from tfkit.studies.process import Timing
from tfkit.studies.settings import STEPS, Keep, Match, PaperClaim
from tfkit.training.progress import duration


def identity(recipe: Recipe, match: Match | None = None) -> str:
    """Hash a recipe and the budget of its runs. The folder of the recipe does not change the hash."""
    home = str(Path.cwd() if recipe.file is None else recipe.file.resolve().parent)
    budget = None if match is None else match.model_dump()
    data = without_seed(plain(recipe))
    data["train"]["parallel"] |= {"pieces": "none"}  # a removed key that earlier versions hash
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
        return "-".join(
            [
                slug(self.arm),
                *(value_word(key, value) for key, value in self.tuned.items()),
                f"s{self.seed}",
                *([f"probe-{self.probe}"] if self.probe else []),
            ]
        )


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
    changed: tuple[str, ...] = ()  # changes after results were seen
    notes: tuple[str, ...] = ()  # warnings, printed with the plan
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

    def tuning(self, arm: Arm) -> list[PlannedRun]:
        """Return the tuning runs of an arm, on the first seed."""
        return [PlannedRun(arm.name, self.seeds[0], values) for values in self.grid]

    @property
    def runs_each(self) -> int:
        """Number of trainings of each arm."""
        return len(self.grid) + len(self.seeds) - 1 + len(self.probes) * len(self.seeds)

    @property
    def most_runs(self) -> int:
        """Number of trainings in total."""
        return len(self.trained) * self.runs_each

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
        """Return the header and rows of the table of planned arms."""
        solved = list(dict.fromkeys(key for arm in self.arms for key in arm.solved))
        keys = [key.rpartition(".")[2] for key in solved]
        cells = []
        for arm in self.arms:
            seconds = None if arm.same_as else self.seconds(arm)
            values = [f"{arm.solved[key]:,}" if key in arm.solved else "" for key in solved]
            count = f"= {arm.same_as}" if arm.same_as else str(self.runs_each)
            time = "" if seconds is None else duration(seconds)
            cells.append([arm.name, count, f"{arm.parameters:,}", f"{arm.flops:,}", *values, time])
        return ["variant", "runs", "parameters", "FLOPs/token", *keys, "time each"], cells

    def summary(self, jobs: int) -> str:
        """Summarize the number of runs and the estimated time."""
        text = f"{self.most_runs:,} runs of {len(self.trained)} variants; seeds {', '.join(map(str, self.seeds))}"
        if self.grid != ({},):
            text += f"; {len(self.grid)} tuned values, tried on seed {self.seeds[0]}"
        each = [self.seconds(arm) for arm in self.trained]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(each):
            return text
        total = duration(sum(known) * self.runs_each / jobs)
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


def runs_of(plan: Plan, best: Mapping[str, Mapping[str, Any]]) -> Iterator[PlannedRun]:
    """Yield the tuning runs, then the runs of each tuned arm, seed by seed."""
    for arm in plan.trained:
        yield from plan.tuning(arm)
    for seed in plan.seeds:
        for arm in plan.trained:
            if arm.name in best:
                yield PlannedRun(arm.name, seed, best[arm.name])
                yield from (PlannedRun(arm.name, seed, best[arm.name], probe) for probe in plan.probes)
