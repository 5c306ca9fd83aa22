"""Resolution of a `model:` section by itself."""

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
    """Return the Blueprint of a `model:` whose weights exist; raise RecipeError with all faults."""
    composed = compose({"tfkit": LANGUAGE, "model": dict(model)}, shipped={})
    faults = Faults(composed.faults, has_weights=True)
    vocabulary = Vocabulary()
    blueprint = ModelResolver(mapping(composed.root)["model"], faults, vocabulary).resolve()
    for node in vocabulary.requests:
        faults.add(node, "without a tokenizer, the size must be a number")
    if faults.errors or blueprint is None:
        raise RecipeError(faults.errors)
    return blueprint
