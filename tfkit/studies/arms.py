"""Arms of a study, the compared variants with the recipe of their runs, and values solved for equal budgets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import Fault, RecipeError, TfkitError, UsageError, by_place
from tfkit.core.options import NonNegativeInt, Seed
from tfkit.recipe.compose import compose
from tfkit.recipe.load import Recipe, load_composed
from tfkit.recipe.settings.agreement import at
from tfkit.recipe.text.faults import is_whole
from tfkit.recipe.text.node import inline
from tfkit.reports.counts import Cost, count, count_parameters, default_length
from tfkit.reports.diff import diff_architectures, diff_settings
from tfkit.studies.settings import KEY, STEPS, Match, Study, arms_in, at_size
from tfkit.training.setup import learned_sizes, steps_of

LONGEST = 60  # maximum characters of an arm's name in a folder name
T = TypeVar("T")


@dataclass(frozen=True)
class StudySource:
    """File of a study, and the overrides and imports that its recipes are loaded with.

    `remembering` reads the file once and lays the values of each recipe over it.
    """

    file: str
    sets: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    trust: bool = False
    _known: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def remembering(self) -> StudySource:
        """Return a copy that caches recipes."""
        return replace(self, _known={})

    def _once(self, key: object, make: Callable[[], T]) -> T:
        if self._known is None:
            return make()
        if (name := repr(key)) not in self._known:
            self._known[name] = make()
        found: T = self._known[name]
        return found

    def recipe(self, variants: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> Recipe:
        """Return the recipe with variants, the overrides of the command line, and `values` by key."""
        sets = (*self.sets, *texts_of(values or {}))

        def laid() -> Recipe:
            layers = self._once("file", lambda: compose(self.file))
            return load_composed(layers.laid(sets=sets, variants=variants), self.trust, self.imports)

        return self._once((tuple(variants), sets), laid)

    def base(self, study: Study, size: Mapping[str, object]) -> Recipe:
        return self.recipe(study.base_variants, {**study.base_values, **size})

    def start(self, study: Study, size: Mapping[str, object]) -> dict[str, int]:
        """Return the baseline's value of the key to solve for at a size; empty without such a key.

        Raise UsageError unless it is a positive integer.
        """
        match = study.match
        if match is None or match.what in ("tokens", "seconds"):
            return {}
        recipe = self.base(study, size)
        node = at(recipe.root, *match.key.split("."))
        value: Any = None if node is None else node.plain()
        if match.key == STEPS and value is None:
            return {STEPS: steps_of(recipe)}
        if not is_whole(value) or value < 1:
            shown = "nothing" if node is None else repr(value)
            where = f"study.match.{match.what}: {match.key}"
            raise UsageError(f"{where}: must be a positive whole number in the baseline; got {shown}")
        return {match.key: int(value)}

    def blueprint(self, recipe: Recipe) -> Blueprint:
        """Return the architecture with all sizes. Read the corpus, once, for sizes that depend on it."""
        if not (recipe.unknown_vocab or recipe.unknown_labels):
            return recipe.blueprint()
        read = (recipe.data and (recipe.data.tokenizer, recipe.data.splits()[0]), recipe.objective)
        vocab_size, labels = self._once(read, lambda: learned_sizes(recipe))
        return recipe.labelled(labels).blueprint(vocab_size if recipe.unknown_vocab else None)

    def steps(self, recipe: Recipe) -> int:
        """Return the optimizer steps of a run. Epochs are converted to steps, once per corpus."""
        if recipe.train.steps is not None:
            return recipe.train.steps
        read = (recipe.data, recipe.objective, recipe.train.epochs, recipe.train.accumulate, recipe.train.seed)
        return self._once(read, lambda: steps_of(recipe))

    def count(self, recipe: Recipe) -> Cost:
        """Count the cost of the recipe's model at the maximum length of its examples, if known."""
        blueprint = self.blueprint(recipe)
        longest = None if recipe.data is None else recipe.data.batch.length
        return count(blueprint, min(longest or 512, default_length(blueprint))).total


@dataclass(frozen=True)
class Arm:
    """A compared variant, defined by variants and values of the recipe.

    `same_as` names an equal arm, whose runs serve both arms; `solved` are the values found by matching.
    """

    name: str
    variants: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    solved: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    flops: Annotated[int, Field(ge=0, le=10**30)] = 0  # per token of a forward pass
    cache_bytes: int = 0  # of a decode state at the counted length
    steps: NonNegativeInt = 0  # of the optimizer
    same_as: str = ""
    size: str = ""  # name in study.sizes
    stage: str = ""  # of a design's cell: screen or confirm
    seeds: tuple[Seed, ...] = ()  # of its runs; empty outside a design: those of the plan

    def all_values(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return all overrides by key. `more` wins over solved values, and these over the arm's own."""
        return {**self.values, **self.solved, **(more or {})}

    def counted(self, source: StudySource) -> Arm:
        """Return a copy with the number of parameters, FLOPs, cache bytes and steps filled in."""
        recipe = source.recipe(self.variants, self.all_values())
        cost = source.count(recipe)
        counted = replace(self, parameters=cost.parameters, flops=cost.flops_per_token, cache_bytes=cost.cache_bytes)
        return replace(counted, steps=source.steps(recipe))


def study_of(recipe: Recipe) -> Study:
    """Return the study section of the recipe; raise UsageError if it is missing."""
    study = recipe.leaves.get(KEY)
    if not isinstance(study, Study):
        raise UsageError(f"{recipe.name}: has no section `study:`; train it with tfkit train")
    return study


def arms_of(source: StudySource, study: Study, variants: Mapping[str, Any]) -> list[Arm]:
    """Return the arms of each size, its baseline first; raise RecipeError with the faults of all arms.

    An arm whose recipe equals an earlier one is marked.
    """
    arms: list[Arm] = []
    recipes: list[Recipe] = []
    faults: list[Fault] = []
    for size, values in study.at_sizes.items():
        for name, own in arms_in(study, variants).items():
            arm = Arm(at_size(name, size), (*study.base_variants, *own), {**study.base_values, **values}, size=size)
            try:
                recipe = source.recipe(arm.variants, {**arm.values, **source.start(study, values)})
            except RecipeError as error:
                faults += error.faults
                continue
            if study.budgets:
                faults += [one for one in recipe.warnings if one.path == "train.schedule.warmup"]
            same = next((one.name for one, other in zip(arms, recipes, strict=True) if alike(other, recipe)), "")
            if same and (study.design is not None or not any("=" in variant for variant in own)):
                raise UsageError(
                    f"study: '{arm.name}' trains as '{same}' does: it changes nothing, or what it changes is set again "
                    "by study.baseline or study.sizes, or is the seed"
                )
            arms.append(replace(arm, same_as=same))
            recipes.append(recipe)
    if faults:
        raise RecipeError(by_place(dict.fromkeys(faults)))
    return arms


def alike(one: Recipe, other: Recipe) -> bool:
    """True if two recipes train the same model, except for seed, device and samples."""
    sides = [
        recipe.settings._replace(train=recipe.train.model_copy(update={"seed": 0, "device": None, "samples": 0}))
        for recipe in (one, other)
    ]
    return sides[0] == sides[1] and one.imports == other.imports and one.blueprint() == other.blueprint()


def without_seed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe without seed, device and samples, in which equal runs may differ."""
    train = {key: value for key, value in data["train"].items() if key not in ("seed", "device", "samples")}
    return {**data, "train": train}


def texts_of(values: Mapping[str, Any]) -> list[str]:
    """Format values by key as arguments of `--set`."""
    return [f"{key}={inline(value)}" for key, value in values.items()]


def plain(recipe: Recipe) -> Any:
    """Return the resolved recipe as data, without its name."""
    return yaml.safe_load(recipe.resolved())


def changes_of(before: Recipe, after: Recipe) -> tuple[str, ...]:
    """Describe the differences between two recipes, one per line, ignoring seeds and names."""
    changes = [*diff_architectures(before.blueprint(), after.blueprint()), *diff_settings(before, after)]
    return tuple(
        f"{one.what}: {one.before} -> {one.after}" + (f" ({one.where})" if one.where else "")
        for one in changes
        if one.what != "train.seed"
    )


def slug(arm: str) -> str:
    """Return a unique file name component for an arm: a hash is appended if characters are replaced or truncated."""
    cleaned = re.sub(r"[^A-Za-z0-9+=@_.-]+", "_", arm).strip(".")[:LONGEST]
    if cleaned == arm:
        return arm
    return f"{cleaned.strip('_') or 'variant'}-{hashlib.sha256(arm.encode()).hexdigest()[:6]}"


LARGEST = 2**22  # maximum width to try
NEIGHBOURS = 64  # further values to try after an invalid one: widths must be divisible by heads
CLOSE = 0.02  # maximum relative difference of the counts


def matched(source: StudySource, arm: Arm, match: Match, baseline: Arm, start: int) -> Arm:
    """Return the arm with the value of the key that matches the baseline; raise UsageError if there is none."""
    if match.key == STEPS:  # FLOPs of the whole training
        arm = arm.counted(source)
        value = max(1, round(start * baseline.flops / arm.flops))
        return replace(arm, solved={STEPS: value}, steps=value)
    target = baseline.parameters if match.what == "parameters" else baseline.flops
    refusals: list[TfkitError] = []

    @cache
    def count_of(value: int) -> int | None:
        """Count the matched quantity for a value of the key; None if it makes the recipe invalid."""
        try:
            recipe = source.recipe(arm.variants, {**arm.values, match.key: value})
            if match.what == "parameters":
                return count_parameters(source.blueprint(recipe))
            return source.count(recipe).flops_per_token
        except (RecipeError, UsageError) as error:
            refusals.append(error)
        return None

    nearest = nearest_value(count_of, target, start)
    reached = None if nearest is None else count_of(nearest)
    if nearest is None or reached is None:
        raise UsageError(f"study.match: '{arm.name}' cannot be counted: {match.key}: {refusals[-1]}")
    if abs(reached - target) > CLOSE * target:
        raise UsageError(
            f"study.match: '{arm.name}' cannot have the {target:,} {match.what} of the baseline: the nearest is "
            f"{match.key}: {nearest} with {reached:,}"
        )
    return replace(arm, solved={match.key: nearest}).counted(source)


def nearest_value(count_of: Callable[[int], int | None], target: int, start: int) -> int | None:
    """Return the integer whose count is nearest to `target`, assuming that counts increase; None if none is valid."""

    def is_above(value: int) -> bool:
        right = _right(count_of, value)
        return right is None or (count_of(right) or 0) > target

    low, high = 1, start
    while not is_above(high) and high < LARGEST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    found = [value for value in (_right(count_of, low), _right(count_of, high)) if value is not None]
    return min(found, key=lambda value: abs((count_of(value) or 0) - target), default=None)


def _right(count_of: Callable[[int], int | None], first: int) -> int | None:
    """Return the smallest valid value that is at least `first`; None if the next few values are invalid."""
    return next((value for value in range(first, first + NEIGHBOURS + 1) if count_of(value) is not None), None)
