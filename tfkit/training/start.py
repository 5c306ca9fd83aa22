"""Checks before a run is continued or replaced, and the messages where that is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tfkit.core.errors import RunError
from tfkit.recipe.settings.sections import Data
from tfkit.storage.files import read_yaml
from tfkit.training.changed import DATA, file_hashes, moved
from tfkit.training.checkpoint import Checkpoints, read_progress
from tfkit.training.contents import in_checkpoints
from tfkit.training.folder import CHECKPOINTS, ENVIRONMENT, EVALUATION, QUANTIZED, RESOLVED, WEIGHTS, RunFolder

# what a run is about: with other values it would be another run; steps and intervals may change
GROUPED = ("train.groups", "train.layer_decay")  # which parameters make a group of the optimizer
TEACHER = "train.teacher"
FROZEN = ("train.freeze", "train.adapter")
FIXED = ("model", "data", "objective", "train.seed", "train.optimizer.type", *FROZEN, TEACHER, *GROUPED)
ABSENT = object()
OFF: tuple[object, ...] = (False, "none", [])


def check_ours(folder: RunFolder) -> None:
    """Raise RunError for a folder that is not free and holds no run."""
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError(f"{folder}: is a file; a run needs a folder")
    if folder.is_free or folder.holds_run:
        return
    if (folder / ENVIRONMENT).is_file() and (folder / RESOLVED).is_file():
        try:
            _ = folder.known
        except RunError as error:
            raise RunError(f"{error}; it says what this run was made with. Choose another --out") from None
    raise RunError(f"{folder}: is not empty and holds no run of tfkit; choose another --out")


def check_use(folder: RunFolder, resume: bool, force: bool) -> None:
    """Raise RunError where the run that is there is not to be touched."""
    if resume and folder.holds_import:
        begin = f"to begin with its weights say train.init_from: {folder}"
        raise RunError(f"{folder}: holds an imported model, which has no training to resume; {begin}")
    if resume and folder.holds_quantized:
        what = f"holds weights in {folder.known[QUANTIZED]}, which cannot be trained"
        raise RunError(f"{folder}: {what}; resume the run that it was made of, or choose another --out")
    if not (resume or force):
        raise RunError(f"{folder}: {_what_is_there(folder)}--force replaces it, or choose another --out")


def check_nothing_is_lost(folder: RunFolder) -> None:
    """Raise RunError where training cannot go on, and would lose more than a beginning by beginning again."""
    if there := _worth_keeping(folder):
        hints = [f"if {path.name} holds its checkpoints, rename it to {CHECKPOINTS}; " for path in _renamed(folder)]
        raise RunError(
            f"{folder}: holds {there}, but no checkpoint to go on from, and --resume deletes nothing; {''.join(hints)}"
            "--force replaces the run, or choose another --out"
        )


def check_same(folder: RunFolder, resolved: str, data: Data | None = None) -> None:
    """Raise RunError when the run in `folder` was started from another model, other data or another objective.

    A run whose resolved.yaml is gone is believed. `data` is that of the recipe: files that were moved are the same.
    """
    if not (folder / RESOLVED).is_file():
        return
    there: Any = read_yaml(folder / RESOLVED)
    here = yaml.safe_load(resolved)
    if data is not None and _at(there, "data") != _at(here, "data"):
        there, here = _at_one_place(folder, there, data), _test_by_name(here)
    found = [line for key in FIXED for line in differences(_fixed(there, key), _fixed(here, key), key)]
    if found:
        more = f"\n  and {len(found) - 5} more" if len(found) > 5 else ""
        raise RunError(
            f"{folder}: was started from another recipe, so it cannot be resumed with this one:\n  "
            + "\n  ".join(found[:5])
            + more
        )


def _fixed(recipe: Any, key: str) -> Any:
    """The value at a key; of the teacher without its folder, since the hash of its weights is on record."""
    value = _at(recipe, key)
    return {**value, "run": ""} if key == TEACHER and isinstance(value, Mapping) else value


def _at_one_place(folder: RunFolder, there: Any, data: Data) -> Any:
    """Return the run's recipe, with each data file at the present place of the file with the recorded hash."""
    places = moved(folder.known.get(DATA), file_hashes(data))
    corpora = _at(there, "data")
    return _test_by_name({**there, "data": _replaced(corpora, places)} if isinstance(corpora, Mapping) else there)


def _test_by_name(recipe: Any) -> Any:
    """Reduce the files of the test split to their names: training does not read them."""
    test = _at(recipe, "data.test")
    if not isinstance(test, Mapping):
        return recipe
    named = {key: _names(value) for key, value in test.items()}
    return {**recipe, "data": {**recipe["data"], "test": named}}


def _names(value: Any) -> Any:
    if isinstance(value, list):
        return [_names(one) for one in value]
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value


def _replaced(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(child, places) for key, child in value.items()}
    if isinstance(value, list):
        return [_replaced(child, places) for child in value]
    return places.get(value, value) if isinstance(value, str) else value


def _what_is_there(folder: RunFolder) -> str:
    if folder.holds_import:
        return "holds an imported model; "
    if folder.holds_quantized:
        return f"holds a run in {folder.known[QUANTIZED]}; "
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is None:
        there = _worth_keeping(folder)
        if there:
            return f"holds {there}, but no checkpoint; "
        return "holds a run that never came to a checkpoint; --resume starts it again, "
    progress = read_progress(checkpoint)
    if progress.finished:
        return f"holds a finished run of {progress.step:,} steps; "
    return f"holds a run that stopped at step {progress.step:,}; --resume continues it, "


def _worth_keeping(folder: RunFolder) -> str:
    """Name the files that a run without a checkpoint would lose by starting again; empty if there are none."""
    found = [name for name in (WEIGHTS, EVALUATION) if (folder / name).exists()]
    found += ["the record of a finished run"] if folder.holds_run and "finished" in folder.known else []
    found += [f"{CHECKPOINTS}/{name}" for name in in_checkpoints(folder.path)[:3]]
    found += [f"{path.name}/" for path in _renamed(folder)]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _renamed(folder: RunFolder) -> list[Path]:
    """Folders that look like the checkpoints of the run under another name."""
    places = [path for path in folder.path.iterdir() if path.is_dir() and path.name != CHECKPOINTS]
    return sorted(path for path in places if Checkpoints(path).last() is not None)


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key, ABSENT) if isinstance(data, Mapping) else ABSENT
    return data


def differences(there: Any, here: Any, path: str, sides: tuple[str, str] = ("run", "recipe")) -> Iterator[str]:
    """Lines that say where two readings differ, by dotted key."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*there, *here]):
            yield from differences(there.get(key, ABSENT), here.get(key, ABSENT), f"{path}.{key}", sides)
    elif there is ABSENT and here in OFF:
        return  # an option that an older version did not have
    elif there != here:
        yield f"{path}: {_shown(there)} in the {sides[0]}, {_shown(here)} in the {sides[1]}"


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else "none" if value is None else f"{value}"
