"""The functions of the Python API that need several rooms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from tfkit.core.blame import parts_named
from tfkit.core.bounds import SEED
from tfkit.core.errors import UsageError
from tfkit.core.registry import CATALOGUES, REGISTRY, nearest
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import ReadingOptions, Recipe, read_for

Source = str | Path | Mapping[str, Any] | Recipe


@parts_named()
def build(
    recipe: Source,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int | None = 0,
    **reading: Unpack[ReadingOptions],
) -> Model:
    """The model of a recipe (a shipped name, a path, a mapping, or one that is loaded), initialised with `seed`.

    On the device "meta" nothing is allocated. Other keywords are those of load_recipe: overrides, variant, trust, sets,
    imports. Raises RecipeError, and UsageError where the vocabulary is known only after a tokenizer is trained.
    """
    loaded = read_for("build", ("device", "dtype", "seed"), recipe, reading)
    if seed is not None and (type(seed) is not int or not 0 <= seed <= SEED.most):
        raise UsageError(f"seed is a whole number from 0 to {SEED.most:,}, or None, got {seed!r}")
    if loaded.unknown_vocab:
        raise UsageError(
            f"the recipe '{loaded.name}' takes its vocab_size from a tokenizer that is not trained yet: train it and "
            'take run.model, or give a number, as in load_recipe(..., overrides={"model.vocab_size": 8000})'
        )
    if loaded.unknown_labels:
        raise UsageError(
            f"the recipe '{loaded.name}' takes its num_classes from a corpus that is not read yet: train it and take "
            'run.model, or give a number, as in load_recipe(..., overrides={"model.head.num_classes": 2})'
        )
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"dtype is a dtype of floating-point numbers such as torch.float32, got {dtype!r}")
    return build_model(loaded.blueprint(), device, dtype, seed)


def parts(slot: str) -> list[str]:
    """The names registered in `slot`, sorted: `parts("attention")`. Raises UsageError for an unknown slot."""
    if slot not in CATALOGUES:
        hint = nearest(slot, list(CATALOGUES))
        more = f"Did you mean '{hint}'?" if hint else f"The slots are {', '.join(CATALOGUES)}."
        raise UsageError(f"unknown slot '{slot}'. {more}")
    return REGISTRY.names(slot)
