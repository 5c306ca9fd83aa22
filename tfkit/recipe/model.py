"""The architecture of a bare `model:`, without other sections."""

from __future__ import annotations

from collections.abc import Mapping

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import RecipeError
from tfkit.recipe.architecture.resolve import ModelResolver
from tfkit.recipe.architecture.stack import Vocabulary
from tfkit.recipe.compose import compose
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import mapping
from tfkit.recipe.text.source import LANGUAGE


def blueprint_of(model: Mapping[str, object]) -> Blueprint:
    """Return the Blueprint of a `model:` with existing weights; raise RecipeError with every fault."""
    composed = compose({"tfkit": LANGUAGE, "model": dict(model)}, shipped={})
    faults = Faults(composed.faults, has_weights=True)
    vocabulary = Vocabulary()
    blueprint = ModelResolver(mapping(composed.root)["model"], faults, vocabulary).resolve()
    for node in vocabulary.requests:
        faults.add(node, "no tokenizer to take the size from; use a number")
    if faults.errors or blueprint is None:
        raise RecipeError(faults.errors)
    return blueprint
