"""Loading of a run's recipe with the third-party code that it needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tfkit.core.component import Component, Config
from tfkit.core.errors import RunError, TfkitWarning, UsageError
from tfkit.core.plugins import source_file
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import FACTS
from tfkit.core.trees import Tree
from tfkit.recipe.imports import hash_of, imported, importer_of, is_file
from tfkit.recipe.load import Recipe, load_saved
from tfkit.storage.checksums import SUMS
from tfkit.storage.files import read_json
from tfkit.storage.hub import downloaded, repository
from tfkit.training.folder import ENVIRONMENT, PUBLISHED, RESOLVED, WEIGHTS, RunFolder
from tfkit.training.kept import KEPT
from tfkit.training.needs import NEEDS, Need, installed_version

SPARED = {"adapter", "callback", "corpus", "metric", "optimizer", "schedule"}  # slots that a trained model does without


def downloaded_run(address: str) -> Path:
    """Download a run from the hub. Raise UsageError or DataError on failure, RunError if the repository is no run."""
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
