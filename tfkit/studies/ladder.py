"""The plan of a ladder: several sizes of one recipe, each on several token budgets, the largest held out.

Compared variants have the same sizes and budgets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import ClassVar

import yaml

from tfkit.core.errors import UsageError
from tfkit.core.slots import ScheduleFacts, of_kind
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.study import STEPS
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.digest import digest_of
from tfkit.studies.plan import Plan
from tfkit.studies.plan_file import begun, check_free
from tfkit.studies.sizes import LadderSize, shape_notes, sizes_like, sizes_of
from tfkit.studies.trial import Timing, trial
from tfkit.training.progress import duration

LEAST_BUDGETS = 3  # needed to determine E, B and b
LOSS = "valid.loss"
BACKWARD = 3  # FLOPs of a training step relative to a forward pass


@dataclass(frozen=True)
class LadderOptions:
    """Options of the command line."""

    sizes: int = 5
    budgets: int = 3
    seeds: int = 2
    span: float = 64.0
    variants: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()  # variants trained at the same sizes
    tune: tuple[str, ...] = ()  # KEY=[VALUE, VALUE], tried at each size

    @cached_property
    def tuned(self) -> dict[str, tuple[object, ...]]:
        """Values to try by key. Raise UsageError for a malformed option."""
        return dict(map(_tuned_values, self.tune))


@dataclass(frozen=True)
class LadderPlan(Plan):
    """Plan with one arm per size and budget, the largest size on the largest budget last.

    Seconds per step are interpolated by FLOPs between the timed smallest and largest sizes.
    """

    FILE: ClassVar[str] = "plan.json"
    KIND: ClassVar[str] = "ladder"

    sizes: tuple[LadderSize, ...] = ()
    size_of: Mapping[str, str] = field(default_factory=dict)  # by arm
    compared: Mapping[str, tuple[LadderSize, ...]] = field(default_factory=dict)  # sizes of each variant, as `sizes`
    variant_of: Mapping[str, str] = field(default_factory=dict)  # by arm; arms of the recipe itself are omitted
    smallest: Timing = field(default_factory=Timing)

    @property
    def held_out(self) -> Arm:
        """Largest size of the recipe, which is predicted."""
        return self.arms[-1]

    @property
    def last(self) -> list[Arm]:
        """Largest sizes of the compared variants and of the recipe, trained after the predictions."""
        largest = self.size_of[self.held_out.name]
        return [arm for arm in self.arms if self.size_of[arm.name] == largest]

    @property
    def fitted(self) -> list[Arm]:
        """Arms that the law of the recipe is fitted to."""
        return [arm for arm in self.arms[:-1] if arm.name not in self.variant_of]

    def arm_like(self, arm: Arm, variant: str) -> Arm:
        """Return the arm of a variant with the size and budget of an arm of the recipe."""
        return next(one for one in self.arms if one.name == f"{variant}+{arm.name}")

    def size(self, arm: Arm) -> LadderSize:
        """Return the size of an arm."""
        sizes = self.compared.get(self.variant_of.get(arm.name, ""), self.sizes)
        place = next(place for place, size in enumerate(self.sizes) if size.name == self.size_of[arm.name])
        return sizes[place]

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

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and rows of a table of the planned sizes and budgets."""
        cells = []
        for arm in self.arms:
            size, seconds = self.size(arm), self.seconds(arm)
            name = f"{size.name}, held out" if arm in self.last else size.name
            tokens, flops = f"{self.tokens(arm):,.0f}", f"{self.flops(arm):.2e}"
            time = "" if seconds is None else duration(seconds)
            cells.append([name, f"{size.parameters:,}", tokens, flops, str(self.runs_each), time])
        return ["size", "layer parameters (N)", "tokens (D)", "FLOPs", "runs", "time each"], cells

    def summary(self, jobs: int) -> str:
        """Summarize the number of runs with their total FLOPs and time."""
        flops = sum(map(self.flops, self.arms)) * self.runs_each
        seeds = ", ".join(map(str, self.seeds))
        runs = f"{self.most_runs} runs of {len(self.sizes)} sizes; seeds {seeds}; {flops:.2e} FLOPs"
        return runs + self._time(jobs)

    @property
    def problem(self) -> str:
        """First problem in the plan, whose file may have been edited; empty if it is valid."""
        agree = set(self.size_of) == {arm.name for arm in self.arms}
        agree = agree and set(self.size_of.values()) == {size.name for size in self.sizes}
        return super().problem or ("" if agree else "arms, sizes and size_of do not agree")

    def other(self, before: Plan) -> str:
        """Describe the runs of the earlier plan if they are not those of this ladder, else return an empty string."""
        text = f"another ladder, of {before.name}: its sizes, budgets, seeds or settings differ"
        return text if before.identity != self.identity else ""

    def only(self, *arms: Arm) -> LadderPlan:
        """Return the plan of some of the arms."""
        return replace(self, arms=arms)


def make_ladder(source: StudySource, options: LadderOptions, out: Path) -> LadderPlan:
    """Plan the ladder of a recipe; raise RecipeError or UsageError if that is impossible.

    The smallest and the largest size are trained for some steps, unless an earlier plan in `out` has timed them.
    """
    recipe = source.recipe(options.variants)
    _check(source, recipe, options)
    whole = source.steps(recipe)
    sizes = sizes_of(source, options.variants, options.sizes, options.span)
    compared = {name: sizes_like(source, (*options.variants, name), sizes) for name in options.compare}
    arms: list[Arm] = []
    variant_of: dict[str, str] = {}
    size_of: dict[str, str] = {}
    for size, budget in _rungs(sizes, options.budgets):
        for name in (*options.compare, ""):
            own = size if not name else compared[name][sizes.index(size)]
            variants = (*options.variants, name) if name else options.variants
            arm = _arm(source.recipe(variants), whole, variants, own, 2**budget)
            arms.append(arm)
            size_of[arm.name] = size.name
            variant_of |= {arm.name: name} if name else {}
    if len({arm.steps for arm in arms}) < options.budgets:
        raise UsageError(f"--budgets {options.budgets}: train.steps: {whole} is too few to be halved that often")
    digests = {arm.name: digest_of(source, arm) for arm in arms}
    _check_arms(options, arms, digests)
    seeds = tuple(range(options.seeds))
    tune = [{key: list(values) for key, values in options.tuned.items()}] if options.tune else []
    identity = hashlib.sha256(json.dumps([digests, seeds, *tune], sort_keys=True).encode()).hexdigest()
    plan = LadderPlan(
        name=recipe.name,
        identity=identity,
        arms=tuple(arms),
        seeds=seeds,
        grid=tuple(dict(zip(options.tuned, values, strict=True)) for values in product(*options.tuned.values())),
        measure=(LOSS,),
        steps=whole,
        digests=digests,
        text=recipe.text or "",
        sizes=sizes,
        size_of=size_of,
        compared=compared,
        variant_of=variant_of,
        notes=(*shape_notes(sizes), *_rate_notes(recipe, options)),
    )
    return _timed(source, plan, out)


def _timed(source: StudySource, plan: LadderPlan, out: Path) -> LadderPlan:
    """Return the plan with the times of its smallest and largest size, from trials or from an earlier plan."""
    before = begun(out, plan)
    if before is not None:
        return replace(plan, timing=before.timing, smallest=before.smallest)
    check_free(out, plan)
    return replace(plan, timing=trial(source, plan.held_out, out), smallest=trial(source, plan.fitted[0], out))


def _rungs(sizes: Sequence[LadderSize], budgets: int) -> Iterator[tuple[LadderSize, int]]:
    """Yield each size with the number of times that its tokens are halved; the largest size has all tokens."""
    for size in sizes:
        yield from ((size, budget) for budget in (range(budgets) if size is not sizes[-1] else (0,)))


def _rate_notes(recipe: Recipe, options: LadderOptions) -> Iterator[str]:
    """Warn about one learning rate for all widths."""
    if recipe.blueprint().parametrization is None and not any(".lr" in key for key in options.tuned):
        yield (
            "one learning rate for all sizes: without muP (model.parametrization) the best rate falls with the width; "
            "--tune train.schedule.lr=[0.5e-3,1e-3,2e-3] tunes it at each size"
        )


def _tuned_values(text: str) -> tuple[str, tuple[object, ...]]:
    """Parse KEY=[VALUE, VALUE]; raise UsageError if it is malformed."""
    key, _, written = text.partition("=")
    try:
        values = yaml.safe_load(written)
    except yaml.YAMLError:
        values = None
    if not key or not isinstance(values, list) or len({repr(value) for value in values}) < max(2, len(values)):
        raise UsageError(f"--tune {text!r}: write a key and different values: train.schedule.lr=[0.001,0.002]")
    return key, tuple(values)


def _check(source: StudySource, recipe: Recipe, options: LadderOptions) -> None:
    """Raise UsageError for a recipe without a validation loss, or a --set of a key that the ladder sets."""
    if recipe.data is None or recipe.objective is None:
        missing = "data" if recipe.data is None else "objective"
        raise UsageError(f"{recipe.name}: has no `{missing}:` section, which a ladder needs; add one")
    if recipe.data.valid is None:
        raise UsageError(f"{recipe.name}: data.valid: is missing; the law is fitted to the loss on it")
    if options.budgets < LEAST_BUDGETS:
        raise UsageError(f"--budgets {options.budgets}: a law needs {LEAST_BUDGETS} budgets of tokens or more")
    for text in source.sets:
        if text.partition("=")[0].strip() == "train.seed":
            raise UsageError(f"--set {text}: the ladder sets the seeds; use --seeds")
        if text.partition("=")[0].strip() in options.tuned:
            raise UsageError(f"--set {text}: --tune sets this key; leave one out")
    known = recipe.variant_entries
    for name in options.compare:
        if name.partition("=")[0] not in known:
            raise UsageError(f"--compare {name}: unknown variant; available: {', '.join(known) or 'none'}")
        other = source.recipe((*options.variants, name)).data
        for key in ("valid", "tokenizer"):
            if other is None or getattr(other, key) != getattr(recipe.data, key):
                text = f"changes data.{key}, so that its losses cannot be compared with the recipe's"
                raise UsageError(f"--compare {name}: {text}; leave data.{key} as it is")
    if len(set(options.compare)) < len(options.compare):
        raise UsageError("--compare: repeats a variant")
    for values in product(*options.tuned.values()):
        source.recipe(options.variants, dict(zip(options.tuned, values, strict=True)))


def _check_arms(options: LadderOptions, arms: Sequence[Arm], digests: Mapping[str, str]) -> None:
    """Raise UsageError for a tuned key that the ladder sets itself, or a variant that trains as the recipe does."""
    own = {"train.seed", "train.epochs"}.union(*(arm.values for arm in arms))
    for key in options.tuned:
        if key in own:
            raise UsageError(f"--tune {key}: the ladder sets this key for each size and budget; tune another key")
    largest = arms[-1].name
    for name in options.compare:
        if digests[f"{name}+{largest}"] == digests[largest]:
            text = "trains as the recipe does: it changes nothing, or only what the ladder sets, such as seed and steps"
            raise UsageError(f"--compare {name}: {text}")


def _arm(recipe: Recipe, whole: int, variants: tuple[str, ...], size: LadderSize, divisor: int) -> Arm:
    """Return a size on a fraction of the recipe's tokens, with all step counts in proportion.

    Each run thus completes its own schedule; an intermediate loss of a longer run has a higher learning rate.
    """
    train = recipe.train

    def part(steps: int) -> int:
        return max(1, round(steps / divisor))

    values: dict[str, object] = {**size.values, STEPS: part(whole)}
    values |= {f"train.{key}": part(getattr(train, key)) for key in ("evaluate_every", "checkpoint_every")}
    schedule = of_kind(train.schedule, ScheduleFacts.Config)
    if schedule is not None and (warmup := schedule.warmup_steps()):
        values["train.schedule.warmup"] = part(warmup)
    values |= {"train.metrics": [], "train.samples": 0, "train.validate.metrics": [], "train.validate.samples": 0}
    values |= {"train.validate.best": "loss", "study": None}
    steps = part(whole)
    name = f"{size.name}-{steps}"
    return Arm(name, variants, values, parameters=size.parameters, flops=size.flops, steps=steps)
