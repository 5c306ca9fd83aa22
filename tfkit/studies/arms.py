"""The arms of a study: what is compared, each with the recipe that its runs are trained by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import Fault, RecipeError, UsageError, by_place
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.study import BASELINE, Study, arm_names
from tfkit.reports.counts import Cost, count, default_length
from tfkit.reports.diff import diff_architectures, diff_settings
from tfkit.training.setup import learned_sizes


@dataclass(frozen=True)
class StudySource:
    """Where the recipes of a study come from: its file, and what the command line laid over all of them."""

    file: str
    sets: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    trust: bool = False
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def blueprint(self, recipe: Recipe) -> Blueprint:
        """The architecture that training the recipe makes, with the sizes that only its corpus tells, read once."""
        if not (recipe.unknown_vocab or recipe.unknown_labels):
            return recipe.blueprint()
        read = repr((recipe.data and (recipe.data.tokenizer, recipe.data.train), recipe.objective))
        if read not in self._sizes:
            self._sizes[read] = learned_sizes(recipe)
        vocab_size, labels = self._sizes[read]
        return recipe.labelled(labels).blueprint(vocab_size if recipe.unknown_vocab else None)

    def count(self, recipe: Recipe) -> Cost:
        """What a model of the recipe costs, at the length of its longest example, as far as that is known."""
        blueprint = self.blueprint(recipe)
        longest = None if recipe.data is None else recipe.data.batch.length
        return count(blueprint, min(longest or 512, default_length(blueprint))).total

    def recipe(self, variants: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe with these variants, and these values by key; raises RecipeError."""
        return load_recipe(
            self.file, dict(values or {}), tuple(variants), trust=self.trust, sets=self.sets, imports=self.imports
        )


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
    same_as: str = ""

    def all_values(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What is laid over the recipe, by key; the later ones win."""
        return {**self.values, **self.solved, **(more or {})}

    def counted(self, source: StudySource) -> Arm:
        """The same with its parameters and FLOPs."""
        cost = source.count(source.recipe(self.variants, self.all_values()))
        return replace(self, parameters=cost.parameters, flops=cost.flops_per_token)


def study_of(recipe: Recipe) -> Study:
    """What the recipe says of a study; raises UsageError where it says nothing."""
    if recipe.study is None:
        raise UsageError(f"{recipe.name}: has no `study:`, which says what is compared; tfkit train trains it")
    return recipe.study


def arms_of(source: StudySource, study: Study, variants: Mapping[str, Any], start: Mapping[str, Any]) -> list[Arm]:
    """The arms, the baseline first; raises RecipeError with the faults of all of them.

    `start` has a value for each key that will be solved for. An arm whose recipe is another one's says so.
    """
    arms = [_arm(name, study) for name in arm_names(study, variants)]
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


def _arm(name: str, study: Study) -> Arm:
    own = () if name == BASELINE else tuple(name.split("+"))
    return Arm(name, (*study.base_variants, *own), study.base_values)


def _told_apart(arms: Iterable[Arm], recipes: Mapping[str, Recipe]) -> Iterable[Arm]:
    known: list[tuple[Any, str]] = []
    for arm in arms:
        data = plain(recipes[arm.name])
        same = next((name for other, name in known if other == data), "")
        known.append((data, arm.name))
        yield replace(arm, same_as=same)


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
    """The name of an arm as a part of a file's name."""
    return "".join(character if character.isalnum() or character in "+=._-" else "_" for character in Path(arm).name)
