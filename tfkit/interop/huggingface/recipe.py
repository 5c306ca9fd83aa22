"""The recipe of an imported model as a person would write it: what a default says already is left out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import RecipeError
from tfkit.recipe.changes.edit import written
from tfkit.recipe.keys import MODEL, STACK
from tfkit.recipe.model import blueprint_of

Tree = dict[str, Any]
ORDER = ["type", *STACK, *(key for key in MODEL if key != "type")]
# said even where a default says the same: what names a part, and the sizes
KEPT = (
    "type", "d_model", "num_layers", "vocab_size", "tied", "residual", "norm", "embedding", "position", "attention",
    "feedforward", "activation", "init",
)  # fmt: skip


def shortened(model: Mapping[str, Any]) -> Tree:
    """The least that gives the same Blueprint, every part still named; raises RecipeError with every fault."""
    wanted = blueprint_of(model)
    short: Tree = copy.deepcopy(dict(model))
    for path in list(_options(short)):
        shorter = _without(short, path)
        if _gives(shorter, wanted):
            short = shorter
    return {key: _plain(value) for key, value in short.items()}


def recipe_text(header: list[str], model: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """The text of a recipe under a header of comments."""
    ordered = {key: model[key] for key in sorted(model, key=_place)}
    body = written({"tfkit": 1, "model": ordered, **{key: value for key, value in sections.items() if value}})
    return "".join(f"# {line}\n" for line in header) + body


def _place(key: str) -> int:
    return ORDER.index(key) if key in ORDER else len(ORDER)


def _options(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of values that a default might say as well."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if key != "special_ids":
                yield from _options(value, (*path, key))
        elif key not in KEPT and (path or key != "head"):
            yield (*path, key)


def _without(tree: Mapping[str, Any], path: tuple[str, ...]) -> Tree:
    key, rest = path[0], path[1:]
    if rest:
        return {**tree, key: _without(tree[key], rest)}
    return {name: value for name, value in tree.items() if name != key}


def _gives(model: Mapping[str, Any], wanted: Blueprint) -> bool:
    try:
        return replace(blueprint_of(model), name=wanted.name) == wanted
    except RecipeError:
        return False


def _plain(value: Any) -> Any:
    """A part without options is written by its name alone, and the word none as the value that it is."""
    if isinstance(value, Mapping):
        return value["type"] if set(value) == {"type"} else {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if value == "none" else value
