"""The plan of a ladder: several sizes of one recipe, each on several token budgets, the largest held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RunError, UsageError
from tfkit.core.slots import ScheduleFacts, of_kind
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.study import STEPS
from tfkit.storage.files import read_json, write_json
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.digest import digest_of
from tfkit.studies.plan import RUNS, Plan
from tfkit.studies.sizes import LadderSize, sizes_of
from tfkit.studies.trial import Timing, trial

PLAN = "plan.json"
LEAST_BUDGETS = 3  # needed to determine E, B and b
LOSS = "valid.loss"
BACKWARD = 3  # FLOPs of a training step relative to a forward pass
OTHER = "choose another --out"


@dataclass(frozen=True)
class Wanted:
    """Options of the command line."""

    sizes: int = 5
    budgets: int = 3
    seeds: int = 2
    span: float = 64.0
    variants: tuple[str, ...] = ()


@dataclass(frozen=True)
class LadderPlan(Plan):
    """A plan with one arm per size and budget, the largest size on the largest budget last.

    Seconds per step are interpolated by FLOPs between the timed smallest and largest sizes.
    """

    sizes: tuple[LadderSize, ...] = ()
    size_of: Mapping[str, str] = field(default_factory=dict)  # by arm
    smallest: Timing = field(default_factory=Timing)

    @property
    def held_out(self) -> Arm:
        """The largest size, which is predicted."""
        return self.arms[-1]

    def size(self, arm: Arm) -> LadderSize:
        """Return the size of an arm."""
        return next(size for size in self.sizes if size.name == self.size_of[arm.name])

    def seconds(self, arm: Arm) -> float | None:
        """Estimate the seconds of an arm's run, interpolated by FLOPs between the smallest and largest size."""
        least, most = self.sizes[0].flops, self.sizes[-1].flops
        share = (self.size(arm).flops - least) / max(1, most - least)
        times = (self.smallest.seconds_per_step, self.timing.seconds_per_step)
        if not all(times):
            return None
        step = times[0] + share * (times[1] - times[0])
        return max(self.smallest.overhead, self.timing.overhead) + step * self.steps_of(arm)

    def tokens(self, arm: Arm) -> float:
        """Estimate the tokens read by an arm's run from the timed tokens per step."""
        return self.timing.tokens_per_step * self.steps_of(arm)

    def flops(self, arm: Arm) -> float:
        """Return the FLOPs of a training."""
        return BACKWARD * self.size(arm).flops * self.tokens(arm)

    def only(self, *arms: Arm) -> LadderPlan:
        """Return the plan of some of the arms."""
        return replace(self, arms=arms)


def make_ladder(source: StudySource, wanted: Wanted, out: Path) -> LadderPlan:
    """Plan the ladder of a recipe; raise RecipeError or UsageError if that is impossible.

    The smallest and the largest size are trained for some steps, unless an earlier plan in `out` has timed them.
    """
    recipe = source.recipe(wanted.variants)
    _check(source, recipe, wanted)
    whole = source.steps(recipe)
    sizes = sizes_of(source, wanted.variants, wanted.sizes, wanted.span)
    arms, size_of = [], {}
    for size in sizes:
        for budget in range(wanted.budgets) if size is not sizes[-1] else (0,):
            arm = _arm(recipe, whole, wanted.variants, size, 2**budget)
            arms.append(arm)
            size_of[arm.name] = size.name
    if len({arm.steps for arm in arms}) < wanted.budgets:
        raise UsageError(f"--budgets {wanted.budgets}: train.steps: {whole} cannot be halved so often")
    digests = {arm.name: digest_of(source, arm) for arm in arms}
    seeds = tuple(range(wanted.seeds))
    identity = hashlib.sha256(json.dumps([digests, seeds], sort_keys=True).encode()).hexdigest()
    plan = LadderPlan(
        name=recipe.name,
        identity=identity,
        arms=tuple(arms),
        seeds=seeds,
        grid=({},),
        measure=(LOSS,),
        steps=whole,
        digests=digests,
        text=recipe.text or "",
        sizes=sizes,
        size_of=size_of,
    )
    before = read_ladder(out) if (out / PLAN).is_file() else None
    if before is not None and before.identity == identity:
        return replace(plan, timing=before.timing, smallest=before.smallest)
    _check_free(out, plan)
    return replace(plan, timing=trial(source, arms[-1], out), smallest=trial(source, arms[0], out))


def _check(source: StudySource, recipe: Recipe, wanted: Wanted) -> None:
    """Raise UsageError for a recipe without a validation loss, or a --set of a key that the ladder sets."""
    if recipe.data is None or recipe.objective is None:
        missing = "data" if recipe.data is None else "objective"
        raise UsageError(f"{recipe.name}: a ladder trains its sizes, and this recipe has no `{missing}:`")
    if recipe.data.valid is None:
        raise UsageError(f"{recipe.name}: data.valid: is missing; the law is fitted to the loss on it")
    if wanted.budgets < LEAST_BUDGETS:
        raise UsageError(f"--budgets {wanted.budgets}: a law needs {LEAST_BUDGETS} budgets of tokens or more")
    for text in source.sets:
        if text.partition("=")[0].strip() == "train.seed":
            raise UsageError(f"--set {text}: the ladder gives each run its seed; give --seeds")


def _arm(recipe: Recipe, whole: int, variants: tuple[str, ...], size: LadderSize, divisor: int) -> Arm:
    """Return a size on a fraction of the recipe's tokens, with all step counts in proportion.

    Each run thus completes its own schedule; an intermediate loss of a longer run has a higher learning rate.
    """
    train = recipe.train

    def part(steps: int) -> int:
        return max(1, round(steps / divisor))

    values: dict[str, Any] = {**size.values, STEPS: part(whole)}
    values |= {f"train.{key}": part(getattr(train, key)) for key in ("evaluate_every", "checkpoint_every")}
    schedule = of_kind(train.schedule, ScheduleFacts.Config)
    if schedule is not None and (warmup := schedule.warmup_steps()):
        values["train.schedule.warmup"] = part(warmup)
    values |= {"train.metrics": [], "train.samples": 0, "train.validate.metrics": [], "train.validate.samples": 0}
    values |= {"train.validate.best": "loss", "study": None}
    steps = part(whole)
    name = f"{size.name}-{steps}"
    return Arm(name, variants, values, parameters=size.parameters, flops=size.flops, steps=steps)


def read_ladder(folder: Path) -> LadderPlan:
    """Read the plan in a ladder's folder; raise RunError if it is missing or invalid."""
    file = folder / PLAN
    if not file.is_file():
        raise RunError(f"{file}: is missing: {folder} holds no ladder")
    try:
        plan = TypeAdapter(LadderPlan).validate_python(read_json(file))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{file}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    if not plan.arms or not plan.seeds or set(plan.size_of) != {arm.name for arm in plan.arms}:
        raise RunError(f"{file}: arms, seeds and size_of do not agree")
    return plan


def keep_ladder(folder: Path, plan: LadderPlan) -> None:
    """Write the plan to the ladder's folder; raise RunError if the folder is occupied."""
    _check_free(folder, plan)
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, TypeAdapter(LadderPlan).dump_python(plan, mode="json"))


def _check_free(folder: Path, plan: LadderPlan) -> None:
    """Raise RunError for a folder with another ladder or other files."""
    if (folder / PLAN).exists():
        there = read_ladder(folder)
        if there.identity != plan.identity:
            differ = "its sizes, budgets, seeds or settings differ"
            raise RunError(f"{folder}: holds another ladder, of {there.name}: {differ}; {OTHER}")
    elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise RunError(f"{folder}: is not empty and holds no ladder; {OTHER}")
