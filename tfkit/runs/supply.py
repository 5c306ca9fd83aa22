"""Loading of a run's recipe with the third-party code that it needs, recorded with the run.

Code is imported only if the user passes --import or trusts the run. A file is looked up at its recorded path, then at
the recorded path relative to the run, so that both can be moved together.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tfkit.core.bounds import Tree
from tfkit.core.component import Component, Config
from tfkit.core.errors import RunError, TfkitWarning, UsageError, installed, is_shipped, source_file
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import FACTS
from tfkit.recipe.architecture.stack import VocabSize
from tfkit.recipe.imports import find_imported, hash_of, imported, importer_of, is_file
from tfkit.recipe.load import Recipe, load_saved
from tfkit.runs.folder import ENVIRONMENT, PUBLISHED, RESOLVED, WEIGHTS, RunFolder
from tfkit.runs.kept import KEPT
from tfkit.storage.checksums import SUMS
from tfkit.storage.files import read_json
from tfkit.storage.hub import downloaded, repository

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
    needs = [_import_needed(name, used, folder) for name in recipe.imports]
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


def _import_needed(name: str, used: Iterable[type[Component]], folder: Path) -> Need:
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


SPARED = {"adapter", "callback", "corpus", "metric", "optimizer", "schedule"}  # slots that a trained model does without


def downloaded_run(address: str) -> Path:
    """Download a run from the hub. Raise UsageError or DataError on failure, RunError if it is not a run."""
    folder = downloaded(repository(address), (*PUBLISHED, SUMS, f"{KEPT}/*"), address)
    for name in (RESOLVED, WEIGHTS):
        if not (folder / name).is_file():
            raise RunError(f"{address}: not a tfkit run: {name} is missing")
    return folder


def run_folder(recipe: str | Path) -> RunFolder | None:
    """Return the run folder that a resolved.yaml belongs to, or None for other recipes."""
    path = Path(recipe)
    folder = RunFolder(path.parent)
    return folder if path.name == RESOLVED and path.is_file() and folder.holds_run else None


def saved_recipe(
    folder: RunFolder,
    trust: bool = False,
    imports: Sequence[str | Path] = (),
    sets: Sequence[str] = (),
    variants: Sequence[str] = (),
) -> Recipe:
    """Load the recipe of a run, importing third-party code if permitted.

    Raise RunError listing all missing parts and how to provide them, except those that only training and evaluation
    use: these raise it when they are built. Warn about changed code.
    """
    problems: list[str] = []
    names = [name for each in imports if (name := _import(each, f"--import {each}: ", problems)) is not None]
    needs = needs_of(folder)
    spared: list[type[Component]] = []
    for need in needs:
        refused = len(problems)
        names += _supply(need, folder, trust, problems)
        if problems[refused:] and need.used.keys() <= SPARED:
            spared += [_absent(slot, name, problems[-1]) for slot, names in need.used.items() for name in names]
            del problems[refused:]
    if problems:
        raise RunError("\n".join(problems))
    for message in changes([need for need in needs if not need.missing]):
        warnings.warn(f"{folder}: {message}", TfkitWarning, stacklevel=3)
    written = [need.name for need in needs if need.door == "import"]
    settled = [str((folder / name).absolute()) if is_file(name) else name for name in written]
    with REGISTRY.standing_in(spared):
        return load_saved(folder / RESOLVED, trust, sets, variants, list(dict.fromkeys(names)), settled)


def _absent(slot: str, name: str, why: str) -> type[Component]:
    """Return a stand-in for a part whose code was not imported: it takes any options, and cannot be built."""

    def build(self: Config, *arguments: object) -> NoReturn:
        raise RunError(why)

    def spelled(self: Config) -> Tree:
        return {"type": name, **(self.model_extra or {})}

    base = FACTS.get(slot, Component)
    facts = {"model_config": ConfigDict(extra="allow"), "build": build, "spelled": spelled, "__module__": __name__}
    config = type("Config", (base.Config,), facts)
    part: type[Component] = type("Absent", (base,), {"Config": config, "__module__": __name__})
    part.adopt(slot, name)
    return part


def needs_of(folder: RunFolder) -> list[Need]:
    """Read the third-party code that a run needs from its environment.json. Raise RunError if it is invalid."""
    file = folder / ENVIRONMENT
    known = read_json(file) if file.is_file() else {}
    try:
        return TypeAdapter(list[Need]).validate_python(known.get(NEEDS, []))
    except (ValidationError, AttributeError):
        raise RunError(f"{file}: the entry `{NEEDS}` cannot be read") from None


def changes(needs: Sequence[Need]) -> Iterator[str]:
    """Yield a message for each package or file that has changed since the run was created."""
    for need in needs:
        version = installed_version(need.distribution) if need.distribution is not None and need.used else None
        if version is not None and version != need.version:
            yield f"created with {need.distribution} {need.version}; {version} is installed"
        elif need.sha256 is not None:
            yield from (
                f"{file} has changed since this run was created; results may differ"
                for file, sha256 in _sources(need)
                if sha256 != need.sha256
            )


def _sources(need: Need) -> Iterator[tuple[str, str]]:
    """Yield the current source files of a need's used parts, with their SHA-256."""
    found: dict[str, str] = {}
    for slot, names in need.used.items():
        for name in names:
            done = importer_of(slot, name)
            file = source_file(REGISTRY.get(slot, name)) if done is None else done.name
            sha256 = None if done is None else done.sha256
            if file is not None and (sha256 is not None or Path(file).is_file()):
                found[file] = sha256 or hash_of(Path(file))
    yield from found.items()


def _supply(need: Need, folder: RunFolder, trust: bool, problems: list[str]) -> list[str]:
    """Import a need's code if it is missing and trusted. Return the --import arguments of the imported code."""
    if not need.missing:
        pairs = [(slot, name) for slot, names in need.used.items() for name in names]
        return list(dict.fromkeys(done.name for pair in pairs if (done := importer_of(*pair)) is not None))
    place = need.place(folder.path)
    if need.door != "import" or not trust or place is None:
        problems.append(f"{folder}: this run needs {_sentence(need, place)}")
        return []
    name = _import(place, f"{folder}: ", problems)
    if name is not None and need.missing:
        problems.append(f"{place}: does not register {', '.join(need.missing)}, which the run {folder} needs")
    return [name] if name is not None else []


def _import(name: str | Path, place: str, problems: list[str]) -> str | None:
    try:
        return imported(name).name
    except UsageError as error:
        problems.append(f"{place}{error}")
        return None


def _sentence(need: Need, place: str | None) -> str:
    """Describe the missing code of a run and how to provide it."""
    parts = ", ".join(need.missing)
    package = f"{need.distribution} {need.version}" if need.distribution is not None else "an installed package"
    if need.door == "plugin":
        broken = "".join(f"; {problem}" for problem in REGISTRY.problems)
        return f"the plugin {need.name} of {package} ({parts}): install it" + broken
    if need.door == "python":
        return (
            f"{parts}, registered by {need.name}: import that module first, or pass to --import a file that imports it"
        )
    if place is None:
        return f"the parts in {need.name} ({parts}), which is missing: pass its new path to --import"
    where = place if is_file(need.name) else f"the module {place}"
    return f"the parts in {where} ({parts}): use --import {place} or --trust"
