"""A small recipe for tests to change, what is wrong with it, and its resolved text read again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tfkit.core.errors import RecipeError
from tfkit.recipe.load import Recipe, load_recipe

HEADS: dict[str, Any] = {"type": "multi_head", "num_heads": 2}
MLP: dict[str, Any] = {"type": "mlp", "d_ff": 16}
LAYER: dict[str, Any] = {"residual": "pre_norm", "norm": "layer_norm", "attention": HEADS, "feedforward": MLP}
MODEL: dict[str, Any] = {
    "type": "decoder", "d_model": 8, "vocab_size": 20, "num_layers": 2, "embedding": "tokens", "layer": LAYER,
    "head": "language_model",
}  # fmt: skip
GONE = object()


def small(layer: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """A decoder with keys of `layer` and of `model` replaced (GONE: left out)."""
    changed = MODEL | {"layer": LAYER | (layer or {})} | model
    if isinstance(changed["layer"], dict):
        changed["layer"] = {key: value for key, value in changed["layer"].items() if value is not GONE}
    return {"tfkit": 1, "model": {key: value for key, value in changed.items() if value is not GONE}}


def said(source: Any, **how: Any) -> list[str]:
    """Faults as they are printed."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(source, **how)
    return str(caught.value).splitlines()


def faults(source: Any, **how: Any) -> list[str]:
    """Faults as `path: message`."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(source, **how)
    return [f"{fault.path}: {fault.message}" for fault in caught.value.faults]


def warned(recipe: Recipe) -> list[str]:
    """Warnings as `path: message`."""
    return [f"{warning.path}: {warning.message}" for warning in recipe.warnings]


def read_again(recipe: Recipe) -> Recipe:
    """The recipe of the resolved text."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "resolved.yaml")
        path.write_text(recipe.resolved(), encoding="utf-8")
        return load_recipe(path)
