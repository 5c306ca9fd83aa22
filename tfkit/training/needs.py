"""Third-party code that a saved run requires, recorded with the run and located when the run is loaded.

Code is imported only if the user passes --import or trusts the run. A file is looked up at its recorded path, then at
the recorded path relative to the run, so that both can be moved together.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tfkit.core.component import Component, Config
from tfkit.core.plugins import installed, is_shipped, source_file
from tfkit.core.registry import REGISTRY
from tfkit.recipe.architecture.stack import VocabSize
from tfkit.recipe.imports import find_imported, hash_of, is_file
from tfkit.recipe.load import Recipe

NEEDS = "imports"  # key in environment.json
Parts = dict[str, list[str]]


class Need(BaseModel):
    """A file, module or plugin that registered parts. `door` says how it was loaded.

    `name` is the argument of --import, and `beside` the file's path relative to the run. `used` lists the `parts` that
    the recipe uses.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    door: Literal["import", "plugin", "python"]
    name: str
    beside: str | None = None
    sha256: str | None = None
    distribution: str | None = None
    version: str | None = None
    parts: Parts = {}
    used: Parts = {}

    @property
    def missing(self) -> list[str]:
        """Parts of the recipe that are not registered, as shown in messages: attention 'fading'."""
        return [
            f"{slot} '{name}'" for slot, names in self.used.items() for name in names if not REGISTRY.has(slot, name)
        ]

    def place(self, folder: Path) -> str | None:
        """Return the current argument for --import, preferring an unchanged file, or None if the file is missing."""
        if not is_file(self.name):
            return self.name
        places = [folder / self.name, *([folder / self.beside] if self.beside is not None else [])]
        found = [place for place in places if os.path.isfile(place)]
        same = [place for place in found if hash_of(place) == self.sha256]
        return next((os.path.normpath(place) for place in same + found), None)


def recorded(recipe: Recipe, folder: Path, vocab_size: VocabSize | None) -> list[dict[str, Any]]:
    """Return records of the recipe's third-party code for environment.json, or [] if all parts are tfkit's."""
    used = [part for part in parts_in(recipe, vocab_size) if not is_shipped(part)]
    needs = [_import(name, used, folder) for name in recipe.imports]
    known = {(slot, name) for need in needs for slot, names in need.parts.items() for name in names}
    others = [part for part in used if (part.part_slot, part.part_name) not in known]
    modules = dict.fromkeys(part.__module__ for part in others)
    needs += [_registered(module, [part for part in others if part.__module__ == module]) for module in modules]
    return [need.model_dump(exclude_none=True) for need in needs]


def parts_in(recipe: Recipe, vocab_size: VocabSize | None = None) -> list[type[Component]]:
    """Return the distinct classes of all parts in a recipe."""
    return parts_of(recipe.blueprint(vocab_size), *recipe.sections().values())


def parts_of(*values: Any) -> list[type[Component]]:
    """Return the distinct classes of all parts in blueprints and sections."""
    return list(dict.fromkeys(_parts(values)))


def _parts(value: Any) -> Iterator[type[Component]]:
    if isinstance(value, Config):
        yield value.part
    if isinstance(value, BaseModel):
        value = [getattr(value, name) for name in type(value).model_fields]
    elif dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        value = list(value.values())
    for item in value if isinstance(value, (list, tuple)) else ():
        yield from _parts(item)


def _import(name: str, used: Iterable[type[Component]], folder: Path) -> Need:
    """Record a file or module imported for the recipe."""
    done = find_imported(name)
    pairs = done.parts if done is not None else ()
    in_recipe = {(part.part_slot, part.part_name) for part in used}
    parts, standing = _by_slot(pairs), _by_slot(pair for pair in pairs if pair in in_recipe)
    if is_file(name):
        sha256 = done.sha256 if done is not None else None
        beside = os.path.relpath(name, folder.absolute())
        return Need(door="import", name=name, beside=beside, sha256=sha256, parts=parts, used=standing)
    return Need(door="import", name=name, **_distribution(name), parts=parts, used=standing)


def _registered(module: str, parts: Sequence[type[Component]]) -> Need:
    """Record a module that registered parts: an installed plugin, or a module imported in Python."""
    used = _by_slot((part.part_slot, part.part_name) for part in parts)
    for entry in installed():
        if module == entry.module or module.startswith(f"{entry.module}."):
            package = {} if entry.dist is None else {"distribution": entry.dist.name, "version": entry.dist.version}
            return Need(door="plugin", name=entry.module, **package, parts=used, used=used)
    file = source_file(parts[0])
    sha256 = hash_of(Path(file)) if file is not None and os.path.isfile(file) else None
    return Need(door="python", name=module, sha256=sha256, **_distribution(module), parts=used, used=used)


def _distribution(module: str) -> dict[str, str]:
    """Return the name and version of the installed package that contains a module, or {}."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return {"distribution": names[0], "version": importlib.metadata.version(names[0])} if names else {}


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _by_slot(pairs: Iterable[tuple[str, str]]) -> Parts:
    found: Parts = {}
    for slot, name in sorted(pairs):
        found.setdefault(slot, []).append(name)
    return found
