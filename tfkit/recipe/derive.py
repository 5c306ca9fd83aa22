"""A recipe's text made from another's: values laid into the text, paths that still point to the same files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tfkit.core.errors import UsageError
from tfkit.core.options import PathMark
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.changes.edit import laid, rewritten
from tfkit.recipe.changes.migrate import MigrationWarning, migrated_text
from tfkit.recipe.compose import Composed, compose
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.contradictions import at
from tfkit.recipe.settings.files import CORPORA
from tfkit.recipe.settings.sections import Data, Generate, InitFrom, Teacher, Train
from tfkit.recipe.shipped import shipped_recipes
from tfkit.recipe.text.node import Node, under
from tfkit.recipe.text.options import marks
from tfkit.recipe.text.source import parse

SECTIONS: dict[str, type[BaseModel]] = {
    "data": Data,
    "train": Train,
    "train.init_from": InitFrom,
    "train.teacher": Teacher,
    "generate": Generate,
}
_HEADER = re.compile(r"(?:[ \t]*#[^\r\n]*(?:\r\n|\n|\r|$))+")


@dataclass(frozen=True)
class Derived:
    """A recipe to be written to `file`, made from what the user calls `source` with values and variants laid in."""

    source: str
    file: Path
    sets: Sequence[str] = ()
    variants: Sequence[str] = ()

    def text(self) -> str:
        """The new recipe's text; raises RecipeError, UsageError where something cannot be written into it."""
        composed = self._composed()
        if composed.file is None or composed.text is None:
            raise UsageError(f"{self.source} is no recipe with a text")
        paths = Paths(composed.root, self.file.parent)
        text = migrated_text(composed.text.removeprefix("\ufeff"), str(composed.file))
        before = rewritten(text, paths.moved(parse(text, str(composed.file))[0], ""), str(composed.file))
        after = before
        for overlay in composed.overlays:
            moved = paths.moved(overlay, "")
            after = laid(after, _at(overlay, moved), str(composed.file))
        return self._with_header(after, composed.file, changed=after != before)

    def check(self, made: Recipe, original: Recipe) -> None:
        """Raise UsageError where the text that was made says something else than the original with all laid over it."""
        paths = [Paths(recipe.root, self.file.parent) for recipe in (made, original)]
        new, old = (paths[0].moved(made.root, ""), paths[1].moved(original.root, ""))
        if new != old or replace(made.blueprint(), name="") != replace(original.blueprint(), name=""):
            raise UsageError(
                f"{self.source}: what is to be laid over it cannot be written into its text, because of what it "
                "extends; write the change into the file by hand"
            )

    def _composed(self) -> Composed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MigrationWarning)  # shown when the original was checked
            return compose(self.source, sets=self.sets, variants=self.variants)

    def _with_header(self, text: str, origin: Path, changed: bool) -> str:
        """The text with a header that says what it was made from, what to type, and of which recipe figures are."""
        newline = "\r\n" if "\r\n" in text else "\n"
        found = _HEADER.match(text)
        lines = self._without_sets(found[0]).splitlines() if found else []
        body = text[found.end() :] if found else text
        names = {origin.stem, origin.name, str(origin), self.source}
        typed = re.compile(rf"(tfkit \w+ )({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?![\w.-])")
        lines = [typed.sub(lambda match: match[1] + str(self.file), line) for line in lines]
        place = next((index for index, line in enumerate(lines) if line.startswith("# Type:")), len(lines))
        lines.insert(place, f"# Made from {self._command()}.")
        if changed:
            lines = [one for line in lines for one in self._qualified(line)]
        return newline.join(lines) + newline + body

    def _without_sets(self, header: str) -> str:
        """The header without the `--set` of what is in the text by now, on a line that continues another too."""
        for key in (re.escape(text.partition("=")[0].strip()) for text in self.sets):
            header = re.sub(rf"(?:[ \t]*\\\r?\n#)?[ \t]+--set {key}=\S+", "", header)
        return header

    def _command(self) -> str:
        given = [f"--variant {name}" for name in self.variants] + [f"--set {text}" for text in self.sets]
        return " ".join([self.source, *(" ".join(text.split()) for text in given)])

    def _qualified(self, line: str) -> list[str]:
        if not line.startswith("# Expect:"):
            return [line]
        return [f"# Of {Path(self.source).stem}, before it was changed here:", line]


class Paths:
    """Knows which values of a recipe are paths: `root` is all of it, which says the type of each part."""

    def __init__(self, root: Node, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self._shipped = {os.path.realpath(path.parent) for path in shipped_recipes().values()}
        self._options: dict[str, frozenset[str]] = {}
        base = at(root, "data", "folder")
        self._has_folder = base is not None and isinstance(base.value, str)

    def moved(self, node: Node, path: str, owner: Node | None = None) -> Any:
        """The plain data of a tree, its paths as they are to be written in `folder`."""
        if isinstance(node.value, dict):
            return {key: self.moved(child, _path(path, key), node) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [self.moved(child, path, owner) for child in node.value]
        if isinstance(node.value, str) and self._is_path(node.value, path, owner):
            return self._moved(node.value, node, path)
        return node.value

    def _moved(self, value: str, node: Node, path: str) -> str:
        """Rewrite a path relative to the new recipe; a file that a shipped recipe lacks belongs beside the new one.

        A path of a corpus that is relative to `data.folder` stays, and may be nothing else.
        """
        here = node.folder or Path()
        if os.path.isabs(value) or (os.path.realpath(here) in self._shipped and not os.path.isfile(here / value)):
            return value
        if self._has_folder and path.startswith(CORPORA):
            return os.path.abspath(value) if node.is_change else value
        return Path(os.path.relpath(here / value, self.folder)).as_posix()

    def _is_path(self, value: str, path: str, owner: Node | None) -> bool:
        parent, _, name = path.rpartition(".")
        if path == "extends":
            return value not in shipped_recipes()
        if path == "imports":
            return value.endswith(".py")
        if parent in SECTIONS:
            return name in _path_options(SECTIONS[parent])
        part = self._type(owner, name) or self._type_at(parent)
        return part is not None and name in self._options_of(part)

    def _type(self, owner: Node | None, name: str) -> str | None:
        kind = None if owner is None or owner.get(name) is None else owner.get("type")
        return kind.value if kind is not None and isinstance(kind.value, str) else None

    def _type_at(self, path: str) -> str | None:
        """The type of the part that the whole recipe has at `path`."""
        node: Node | None = self.root
        for key in path.split("."):
            node = None if node is None else node.get(key)
        kind = node if node is None or isinstance(node.value, str) else node.get("type")
        return kind.value if kind is not None and isinstance(kind.value, str) else None

    def _options_of(self, part: str) -> frozenset[str]:
        """The options of the parts of that name, in whatever slot, that are paths."""
        if part not in self._options:
            parts = [REGISTRY.load(slot).get(part) for slot in CATALOGUES]
            found = [_path_options(one.Config) for one in parts if one is not None]
            self._options[part] = frozenset().union(*found)
        return self._options[part]


def _path_options(model: type[BaseModel]) -> frozenset[str]:
    fields = model.model_fields.items()
    return frozenset(name for name, field in fields if any(isinstance(mark, PathMark) for mark in marks(field)))


def _path(path: str, key: str) -> str:
    """The path of a key; what a variant is named is no part of it."""
    if path == "variants":
        return "variants."
    return key if path == "variants." else under(path, key)


def _at(node: Node, data: Any) -> Node:
    """The tree of `data`, which has the form of `node`, with its places and paths."""
    if isinstance(node.value, dict):
        return replace(node, value={key: _at(child, data[key]) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_at(child, item) for child, item in zip(node.value, data, strict=True)])
    return replace(node, value=data)
