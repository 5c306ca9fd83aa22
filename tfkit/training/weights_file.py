"""Headers of weights files: tensor shapes, and the model's recipe in the metadata."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import tfkit
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import spell
from tfkit.core.errors import RunError
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_saved
from tfkit.recipe.text.source import LANGUAGE
from tfkit.recipe.views.resolved import model_values

ENDING = ".safetensors"
ENTRY = "tfkit"  # the only metadata entry, because several would be written in undefined order
RECIPE, DIGEST, VERSION, TIED = "recipe", "recipe_sha256", "version", "tied"  # keys of the entry
KEYS = ("tfkit", "model")  # the keys of the stored recipe


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file for reading. Raise RunError if it is missing or invalid."""
    if not path.is_file():
        raise RunError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: not a complete safetensors file: {error}") from None


def is_weights_file(path: str | Path) -> bool:
    """True if a path ends in .safetensors and is not a folder."""
    return Path(path).suffix == ENDING and not Path(path).is_dir()


def entry_of(blueprint: Blueprint) -> dict[str, Any]:
    """Return the metadata entry of a model: its full recipe, the recipe's SHA-256, and tfkit's version."""
    recipe = {"tfkit": LANGUAGE, "model": spell(model_values(blueprint))}
    return with_digest({VERSION: tfkit.__version__, DIGEST: "", RECIPE: recipe})


def with_digest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with the SHA-256 of its recipe filled in."""
    return {**entry, DIGEST: _digest(entry[RECIPE])}


def read_entry(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Parse tfkit's metadata entry, or return {} if there is none. Raise RunError if it is invalid."""
    try:
        entry = json.loads(metadata.get(ENTRY, "{}"))
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise RunError(f"{path}: the entry {ENTRY!r} of the metadata cannot be read; the file is damaged")
    return entry


def recipe_in(
    path: Path, imports: Sequence[str | Path] = (), sets: Sequence[str] = (), variants: Sequence[str] = ()
) -> Recipe:
    """Load the model's recipe from a weights file. No code is imported except `imports`.

    Raise RunError if the file is damaged or contains no recipe, RecipeError if the recipe is invalid.
    """
    with opened(path) as file:
        entry = read_entry(path, file.metadata() or {})
    recipe = entry.get(RECIPE)
    if recipe is None:
        why = "it was not written by tfkit, or by an older version"
        raise RunError(f"{path}: contains no recipe: {why}; load its run folder instead")
    if not isinstance(recipe, dict) or sorted(recipe) != sorted(KEYS) or _digest(recipe) != entry.get(DIGEST):
        raise RunError(f"{path}: its recipe has changed since it was written; the file is damaged or was edited")
    return load_saved(recipe, sets=sets, variants=variants, imports=imports, label=str(path))


def check_fits(path: Path, blueprint: Blueprint) -> None:
    """Raise RunError if tensors of the model are missing from the file or have other shapes. Nothing is allocated."""
    with opened(path) as file:
        names = file.keys()
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    seen: set[int] = set()
    for name, tensor in build_model(blueprint, device="meta").state_dict(keep_vars=True).items():
        if id(tensor) not in seen and shapes.get(name) != list(tensor.shape):
            found = f"has shape {shapes[name]}" if name in shapes else "is missing"
            raise RunError(f"{path}: does not fit its recipe: {name} {found}, expected shape {list(tensor.shape)}")
        seen.add(id(tensor))


def _digest(recipe: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode("ascii")).hexdigest()
