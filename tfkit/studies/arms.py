"""Arms of a study: the compared variants, each with the recipe of its runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import yaml
from pydantic import Field

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import Fault, RecipeError, UsageError, by_place
from tfkit.core.options import NonNegativeInt
from tfkit.recipe.architecture.stack import VocabSize
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.study import Study, arms_in
from tfkit.recipe.text.node import inline
from tfkit.reports.counts import Cost, count, default_length
from tfkit.reports.diff import diff_architectures, diff_settings
from tfkit.training.setup import learned_sizes, steps_of

LONGEST = 60  # maximum characters of an arm's name in a folder name


@dataclass(frozen=True)
class StudySource:
    """File of a study, and the overrides and imports that its recipes are loaded with."""

    file: str
    sets: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    trust: bool = False
    _sizes: dict[str, tuple[VocabSize, int]] = field(default_factory=dict, compare=False, repr=False)
    _steps: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    _recipes: dict[str, Recipe] | None = field(default=None, compare=False, repr=False)

    def remembering(self) -> StudySource:
        """Return a copy that caches recipes."""
        return replace(self, _recipes={})

    def blueprint(self, recipe: Recipe) -> Blueprint:
        """Return the architecture with all sizes. Read the corpus, once, for sizes that depend on it."""
        if not (recipe.unknown_vocab or recipe.unknown_labels):
            return recipe.blueprint()
        read = repr((recipe.data and (recipe.data.tokenizer, recipe.data.train), recipe.objective))
        if read not in self._sizes:
            self._sizes[read] = learned_sizes(recipe)
        vocab_size, labels = self._sizes[read]
        return recipe.labelled(labels).blueprint(vocab_size if recipe.unknown_vocab else None)

    def steps(self, recipe: Recipe) -> int:
        """Return the optimizer steps of a run. Epochs are converted to steps, once per corpus."""
        if recipe.train.steps is not None:
            return recipe.train.steps
        read = repr((recipe.data, recipe.objective, recipe.train.epochs, recipe.train.accumulate, recipe.train.seed))
        if read not in self._steps:
            self._steps[read] = steps_of(recipe)
        return self._steps[read]

    def count(self, recipe: Recipe) -> Cost:
        """Count the cost of the recipe's model at the maximum length of its examples, if known."""
        blueprint = self.blueprint(recipe)
        longest = None if recipe.data is None else recipe.data.batch.length
        return count(blueprint, min(longest or 512, default_length(blueprint))).total

    def recipe(self, variants: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> Recipe:
        """Load the recipe with variants, the overrides of the command line, and `values` by key."""
        overrides = (*self.sets, *texts_of(values or {}))
        cache, key = self._recipes, repr((tuple(variants), overrides))
        if cache is not None and key in cache:
            return cache[key]
        recipe = load_recipe(self.file, None, tuple(variants), trust=self.trust, sets=overrides, imports=self.imports)
        if cache is not None:
            cache[key] = recipe
        return recipe


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
    if recipe.study is None:
        raise UsageError(f"{recipe.name}: has no section `study:`; train it with tfkit train")
    return recipe.study


def arms_of(source: StudySource, study: Study, variants: Mapping[str, Any], start: Mapping[str, Any]) -> list[Arm]:
    """Return the arms, the baseline first; raise RecipeError with the faults of all arms.

    `start` has a value for each key to solve for. An arm whose recipe equals an earlier one is marked.
    """
    arms = [
        Arm(name, (*study.base_variants, *own), study.base_values) for name, own in arms_in(study, variants).items()
    ]
    recipes: dict[str, Recipe] = {}
    faults: list[Fault] = []
    for arm in arms:
        try:
            recipes[arm.name] = source.recipe(arm.variants, {**arm.values, **start})
        except RecipeError as error:
            faults += error.faults
    if faults:
        raise RecipeError(by_place(faults))
    return list(_mark_equal(arms, recipes))


def _mark_equal(arms: Iterable[Arm], recipes: Mapping[str, Recipe]) -> Iterable[Arm]:
    """Mark arms that equal an earlier one; raise UsageError for a variant without effect."""
    known: list[tuple[Any, str]] = []
    for arm in arms:
        data = without_seed(plain(recipes[arm.name]))
        same = next((name for other, name in known if other == data), "")
        if same and not any("=" in variant for variant in arm.variants):
            raise UsageError(
                f"study: '{arm.name}' trains as '{same}' does: it changes nothing, or what it changes is set again by "
                "study.baseline, or is the seed"
            )
        known.append((data, arm.name))
        yield replace(arm, same_as=same)


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
    cleaned = re.sub(r"[^A-Za-z0-9+=_.-]+", "_", arm).strip(".")[:LONGEST]
    if cleaned == arm:
        return arm
    return f"{cleaned.strip('_') or 'variant'}-{hashlib.sha256(arm.encode()).hexdigest()[:6]}"
