"""The arms of a study: what is compared, each with the recipe that its runs are trained by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import Fault, RecipeError, UsageError, by_place
from tfkit.recipe.architecture.sizes import VocabSize
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.study import Study, arms_in
from tfkit.recipe.text.node import inline
from tfkit.reports.counts import Cost, count, default_length
from tfkit.reports.diff import diff_architectures, diff_settings
from tfkit.training.setup import learned_sizes, steps_of

LONGEST = 60  # letters of an arm in the name of a folder


@dataclass(frozen=True)
class StudySource:
    """Where the recipes of a study come from: its file, and what the command line laid over all of them."""

    file: str
    sets: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    trust: bool = False
    _sizes: dict[str, tuple[VocabSize, int]] = field(default_factory=dict, compare=False, repr=False)
    _steps: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    _recipes: dict[str, Recipe] | None = field(default=None, compare=False, repr=False)

    def remembering(self) -> StudySource:
        """The same that reads each recipe once."""
        return replace(self, _recipes={})

    def blueprint(self, recipe: Recipe) -> Blueprint:
        """The architecture that training the recipe makes, with the sizes that only its corpus tells, read once."""
        if not (recipe.unknown_vocab or recipe.unknown_labels):
            return recipe.blueprint()
        read = repr((recipe.data and (recipe.data.tokenizer, recipe.data.train), recipe.objective))
        if read not in self._sizes:
            self._sizes[read] = learned_sizes(recipe)
        vocab_size, labels = self._sizes[read]
        return recipe.labelled(labels).blueprint(vocab_size if recipe.unknown_vocab else None)

    def steps(self, recipe: Recipe) -> int:
        """The optimizer steps of a training; epochs are counted once for the same data."""
        if recipe.train.steps is not None:
            return recipe.train.steps
        read = repr((recipe.data, recipe.objective, recipe.train.epochs, recipe.train.accumulate, recipe.train.seed))
        if read not in self._steps:
            self._steps[read] = steps_of(recipe)
        return self._steps[read]

    def count(self, recipe: Recipe) -> Cost:
        """What a model of the recipe costs, at the length of its longest example, as far as that is known."""
        blueprint = self.blueprint(recipe)
        longest = None if recipe.data is None else recipe.data.batch.length
        return count(blueprint, min(longest or 512, default_length(blueprint))).total

    def recipe(self, variants: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe with these variants, what the command line says, and these values by key; raises RecipeError."""
        laid = (*self.sets, *texts_of(values or {}))
        known, asked = self._recipes, repr((tuple(variants), laid))
        if known is not None and asked in known:
            return known[asked]
        recipe = load_recipe(self.file, None, tuple(variants), trust=self.trust, sets=laid, imports=self.imports)
        if known is not None:
            known[asked] = recipe
        return recipe


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared: the variants and values that make it.

    `same_as` names the arm that it equals, whose runs stand for its own; `solved` is what was matched.
    """

    name: str
    variants: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    solved: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    flops: int = 0  # of a token in a forward
    cache_bytes: int = 0  # of a decode state at the length that was counted
    steps: int = 0  # of the optimizer
    same_as: str = ""

    def all_values(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What is laid over the recipe, by key; the later ones win."""
        return {**self.values, **self.solved, **(more or {})}

    def counted(self, source: StudySource) -> Arm:
        """The same with its parameters, FLOPs and steps."""
        recipe = source.recipe(self.variants, self.all_values())
        cost = source.count(recipe)
        counted = replace(self, parameters=cost.parameters, flops=cost.flops_per_token, cache_bytes=cost.cache_bytes)
        return replace(counted, steps=source.steps(recipe))


def study_of(recipe: Recipe) -> Study:
    """What the recipe says of a study; raises UsageError where it says nothing."""
    if recipe.study is None:
        raise UsageError(f"{recipe.name}: has no `study:`, which says what is compared; tfkit train trains it")
    return recipe.study


def arms_of(source: StudySource, study: Study, variants: Mapping[str, Any], start: Mapping[str, Any]) -> list[Arm]:
    """The arms, the baseline first; raises RecipeError with the faults of all of them.

    `start` has a value for each key that will be solved for. An arm whose recipe is another one's says so.
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
    return list(_told_apart(arms, recipes))


def _told_apart(arms: Iterable[Arm], recipes: Mapping[str, Recipe]) -> Iterable[Arm]:
    """The arms, those that equal another saying so; raises UsageError for a variant that changes nothing."""
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
    """A recipe's data without what runs of one study may differ in."""
    train = {key: value for key, value in data["train"].items() if key not in ("seed", "device", "samples")}
    return {**data, "train": train}


def texts_of(values: Mapping[str, Any]) -> list[str]:
    """Values by key as `--set` takes them."""
    return [f"{key}={inline(value)}" for key, value in values.items()]


def plain(recipe: Recipe) -> Any:
    """All that a recipe says, as data, whatever its name."""
    return yaml.safe_load(recipe.resolved())


def changes_of(before: Recipe, after: Recipe) -> tuple[str, ...]:
    """How two recipes differ, a line for each difference; seeds and names are no difference."""
    changes = [*diff_architectures(before.blueprint(), after.blueprint()), *diff_settings(before, after)]
    return tuple(
        f"{one.what}: {one.before} -> {one.after}" + (f" ({one.where})" if one.where else "")
        for one in changes
        if one.what != "train.seed"
    )


def slug(arm: str) -> str:
    """The name of an arm as a part of a file's name, its own: where letters are replaced or cut, a hash follows."""
    cleaned = re.sub(r"[^A-Za-z0-9+=_.-]+", "_", arm).strip(".")[:LONGEST]
    if cleaned == arm:
        return arm
    return f"{cleaned.strip('_') or 'variant'}-{hashlib.sha256(arm.encode()).hexdigest()[:6]}"
