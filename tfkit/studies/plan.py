"""The plan of a study: its arms with equal budgets, and its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, Strict

from tfkit.core.bounds import ARMS, SEEDS, TRIALS
from tfkit.core.options import PositiveInt, Seed
from tfkit.recipe.settings.study import STEPS, PaperClaim
from tfkit.studies.arms import Arm, slug
from tfkit.studies.trial import Timing
from tfkit.training.run_name import value_word

RUNS = "runs"
FORMAT = 1


@dataclass(frozen=True)
class PlannedRun:
    """One training: an arm, a seed, and the tuned values by key."""

    arm: str
    seed: int
    tuned: Mapping[str, Any] = field(default_factory=dict, hash=False)
    probe: str = ""  # the corpus that it is probed with; empty: it is trained on the study's own data

    @property
    def name(self) -> str:
        """The name of its folder."""
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
    """A study that is ready to be run; what study.json holds.

    `identity` is a hash of the baseline's recipe: a folder holds the runs of one study.
    """

    name: str
    identity: str
    arms: Annotated[tuple[Arm, ...], Field(max_length=ARMS.most)]
    seeds: Annotated[tuple[Annotated[Seed, Strict()], ...], Field(max_length=SEEDS.most)]
    # the values that are tried of what is tuned; one empty mapping: nothing is
    grid: Annotated[tuple[Mapping[str, Any], ...], Field(max_length=TRIALS.most)]
    measure: tuple[str, ...]
    steps: Annotated[PositiveInt, Strict()]
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the values by key that make each of them
    rising: tuple[str, ...] = ()  # the measures of which more is better
    timing: Timing = field(default_factory=Timing)
    digests: Mapping[str, str] = field(default_factory=dict)  # of each arm's recipe
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # how each differs from the baseline
    about: str = ""
    claims: tuple[PaperClaim, ...] = ()
    text: str = ""  # of the study's file
    format: int = FORMAT

    def arm(self, name: str) -> Arm:
        """The arm of that name, or the one that it equals."""
        found = next(arm for arm in self.arms if arm.name == name)
        return self.arm(found.same_as) if found.same_as else found

    @property
    def trained(self) -> list[Arm]:
        """The arms that have runs of their own."""
        return [arm for arm in self.arms if not arm.same_as]

    def tuning(self, arm: Arm) -> list[PlannedRun]:
        """The runs that choose an arm's tuned values, on the first seed."""
        return [PlannedRun(arm.name, self.seeds[0], values) for values in self.grid]

    @property
    def runs_each(self) -> int:
        """How many trainings an arm has."""
        return len(self.grid) + len(self.seeds) - 1 + len(self.probes) * len(self.seeds)

    @property
    def most_runs(self) -> int:
        """How many trainings there are in all."""
        return len(self.trained) * self.runs_each

    def seconds(self, arm: Arm) -> float | None:
        """What one run of an arm will take, by its FLOPs and steps; None where nothing was timed."""
        if not self.timing.seconds_per_step:
            return None
        baseline = self.arms[0]
        work = arm.flops / baseline.flops if baseline.flops else 1.0
        return self.timing.overhead + self.timing.seconds_per_step * work * self.steps_of(arm)

    def higher_is_better(self, measure: str) -> bool:
        """Whether more of a measure is better."""
        return measure in self.rising

    def steps_of(self, arm: Arm) -> int:
        """The optimizer steps of a run on the study's own data."""
        return arm.steps or self.steps

    def values(self, run: PlannedRun) -> dict[str, Any]:
        """What is laid over the recipe for a run, by key."""
        probe = self.probes[run.probe] if run.probe else {}
        return self.arm(run.arm).all_values({**run.tuned, **probe, "train.seed": run.seed})

    def run_steps(self, run: PlannedRun) -> int:
        """The optimizer steps of a run."""
        return int(self.values(run).get(STEPS, self.steps_of(self.arm(run.arm))))


def runs_of(plan: Plan, best: Mapping[str, Mapping[str, Any]]) -> Iterator[PlannedRun]:
    """The runs that are to be made, seed by seed; of an arm whose tuned values are not known yet, those that tell."""
    for arm in plan.trained:
        yield from plan.tuning(arm)
    for seed in plan.seeds:
        for arm in plan.trained:
            if arm.name in best:
                yield PlannedRun(arm.name, seed, best[arm.name])
                yield from (PlannedRun(arm.name, seed, best[arm.name], probe) for probe in plan.probes)
