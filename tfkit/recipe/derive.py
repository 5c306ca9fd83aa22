"""Generation of a recipe that extends another one, with relative paths rewritten to keep pointing to the same files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tfkit.core.errors import UsageError
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.compose import compose, shipped_recipes
from tfkit.recipe.load import Recipe
from tfkit.recipe.overlays import merge, written
from tfkit.recipe.settings.agreement import CORPORA, at
from tfkit.recipe.settings.sections import Data, Generate, InitFrom, Teacher, Train
from tfkit.recipe.text.faults import options_of
from tfkit.recipe.text.node import Node, under
from tfkit.recipe.text.source import LANGUAGE

SECTIONS: dict[str, type[BaseModel]] = {
    "data": Data,
    "train": Train,
    "train.init_from": InitFrom,
    "train.teacher": Teacher,
    "generate": Generate,
}


@dataclass(frozen=True)
class Derived:
    """A new recipe, to be saved as `file`, that extends `source` and applies `sets` and `variants`."""

    source: str
    file: Path
    sets: Sequence[str] = ()
    variants: Sequence[str] = ()

    def text(self) -> str:
        """Return the text of the new recipe; raise UsageError if the source is not a file."""
        composed = compose(self.source, sets=self.sets, variants=self.variants)
        if composed.file is None:
            raise UsageError(f"{self.source} is not a recipe file")
        paths = Paths(composed.root, self.file.parent)
        changes = Node({}, composed.root.place)
        for overlay in composed.overlays:
            changes = merge(changes, _at(overlay, paths.moved(overlay, "")), [])
        train = "show" if composed.root.get("objective") is None else "train"
        arguments = [f"--variant {name}" for name in self.variants] + [f"--set {text}" for text in self.sets]
        changed = f", changed by {' '.join(' '.join(text.split()) for text in arguments)}" if arguments else ""
        header = f"# {self.source}{changed}; tfkit show {self.file} prints the whole recipe.\n"
        # a shipped name, or a path relative to the new recipe
        base = Path(os.path.relpath(composed.file, self.file.parent)).as_posix()
        base = self.source if self.source in shipped_recipes() else base
        header += f"# Type: tfkit {train} {self.file}\n"
        return header + written({"tfkit": LANGUAGE, "extends": base, **changes.plain()})

    def check(self, made: Recipe, original: Recipe) -> None:
        """Raise UsageError unless the new recipe is equivalent to `original`, which is the source with the changes."""
        paths = [Paths(recipe.root, self.file.parent) for recipe in (made, original)]
        new, old = (paths[0].moved(made.root, ""), paths[1].moved(original.root, ""))
        if new != old or replace(made.blueprint(), name="") != replace(original.blueprint(), name=""):
            text = "a recipe that extends it cannot express these changes; write the recipe by hand"
            raise UsageError(f"{self.source}: {text}")


class Paths:
    """Rewriter of the file paths in a recipe; the types of parts are looked up in `root`, the whole recipe."""

    def __init__(self, root: Node, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self._shipped = {os.path.realpath(path.parent) for path in shipped_recipes().values()}
        self._options: dict[str, frozenset[str]] = {}
        base = at(root, "data", "folder")
        self._has_folder = base is not None and isinstance(base.value, str)

    def moved(self, node: Node, path: str, owner: Node | None = None) -> Any:
        """Convert a tree to plain data, with paths relative to `folder`."""
        if isinstance(node.value, dict):
            return {key: self.moved(child, _path(path, key), node) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [self.moved(child, path, owner) for child in node.value]
        if isinstance(node.value, str) and self._is_path(node.value, path, owner):
            return self._moved(node.value, node, path)
        return node.value

    def _moved(self, value: str, node: Node, path: str) -> str:
        """Make a path relative to the new recipe.

        Corpus paths relative to `data.folder` are kept, and so are files that users of a shipped recipe must provide.
        """
        here = node.folder or Path()
        if os.path.isabs(value) or (os.path.realpath(here) in self._shipped and not os.path.isfile(here / value)):
            return value
        if self._has_folder and path.startswith(CORPORA):
            return os.path.abspath(value) if node.is_change else value
        return Path(os.path.relpath(here / value, self.folder)).as_posix()

    def _is_path(self, value: str, path: str, owner: Node | None) -> bool:
        parent, _, name = path.rpartition(".")
        if path == "imports":
            return value.endswith(".py")
        if parent in SECTIONS:
            return name in _path_options(SECTIONS[parent])
        kind = None if owner is None or owner.get(name) is None else owner.get("type")
        if kind is None or not isinstance(kind.value, str):  # the type of the part in the whole recipe
            part = at(self.root, *parent.split("."))
            kind = part if part is None or isinstance(part.value, str) else part.get("type")
        if kind is None or not isinstance(kind.value, str):
            return False
        if kind.value not in self._options:  # of all parts with this name, in any slot
            parts = [REGISTRY.load(slot).get(kind.value) for slot in CATALOGUES]
            options = [_path_options(one.Config) for one in parts if one is not None]
            self._options[kind.value] = frozenset().union(*options)
        return name in self._options[kind.value]


def _path_options(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for name, option in options_of(model).items() if option.path is not None)


def _path(path: str, key: str) -> str:
    """Return the path of a key in the mapping at `path`; keys of a variant start at the root of the recipe."""
    if path == "variants":
        return "variants."
    return key if path == "variants." else under(path, key)


def _at(node: Node, data: Any) -> Node:
    """Convert `data` to a tree with the places and paths of `node`, which has the same structure."""
    if isinstance(node.value, dict):
        return replace(node, value={key: _at(child, data[key]) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_at(child, item) for child, item in zip(node.value, data, strict=True)])
    return replace(node, value=data)
