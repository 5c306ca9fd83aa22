"""Checks before a run is resumed or replaced, and their error messages."""

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

# keys that define a run: with other values it would be another one; steps and intervals may change
GROUPED = ("train.groups", "train.layer_decay")  # they decide which parameters form a group of the optimizer
TEACHER = "train.teacher"
FROZEN = ("train.freeze", "train.adapter")
FIXED = ("model", "data", "objective", "train.seed", "train.optimizer.type", *FROZEN, TEACHER, *GROUPED)
ABSENT = object()
OFF: tuple[object, ...] = (False, "none", [])


def check_ours(folder: RunFolder) -> None:
    """Raise RunError for a folder that is not free and contains no run."""
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError(f"{folder}: is a file; a run needs a folder")
    if folder.is_free or folder.holds_run:
        return
    if (folder / ENVIRONMENT).is_file() and (folder / RESOLVED).is_file():
        try:
            _ = folder.known
        except RunError as error:
            raise RunError(f"{error}; it describes how this run was trained. Choose another --out") from None
    raise RunError(f"{folder}: not empty and not a run of tfkit; choose another --out")


def check_use(folder: RunFolder, resume: bool, force: bool) -> None:
    """Raise RunError if the existing run must not be changed."""
    if resume and folder.holds_import:
        begin = f"to start from its weights, use train.init_from: {folder}"
        raise RunError(f"{folder}: contains an imported model, which has no training to resume; {begin}")
    if resume and folder.holds_quantized:
        what = f"contains {folder.known[QUANTIZED]} weights, which cannot be trained"
        raise RunError(f"{folder}: {what}; resume the run they were quantized from, or choose another --out")
    if not (resume or force):
        raise RunError(f"{folder}: {_what_is_there(folder)}--force replaces it, or choose another --out")


def check_nothing_is_lost(folder: RunFolder) -> None:
    """Raise RunError if training cannot resume and a restart would lose results."""
    if there := _worth_keeping(folder):
        if folder.holds_run and CHECKPOINTS in folder.removed:
            text = "a study has deleted its checkpoints (study.keep), so it cannot be resumed"
            raise RunError(f"{folder}: {text}; --force replaces the run, or choose another --out")
        hints = [f"if {path.name} contains its checkpoints, rename it to {CHECKPOINTS}; " for path in _renamed(folder)]
        raise RunError(
            f"{folder}: contains {there}, but no checkpoint to resume from, and --resume deletes nothing; "
            f"{''.join(hints)}--force replaces the run, or choose another --out"
        )


def check_same(folder: RunFolder, resolved: str, data: Data | None = None) -> None:
    """Raise RunError if the run was started from another model, other data or another objective.

    Skip the check without a resolved.yaml. `data` is the recipe's: moved files count as unchanged.
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
            f"{folder}: was started from another recipe and cannot be resumed with this one:\n  "
            + "\n  ".join(found[:5])
            + more
        )


def _fixed(recipe: Any, key: str) -> Any:
    """Return the value at a key; of the teacher without its folder, since its weights are identified by hash."""
    value = _at(recipe, key)
    if key == "data" and isinstance(value, Mapping):
        return {name: option for name, option in value.items() if name != "shards"}  # the batches are the same
    return {**value, "run": ""} if key == TEACHER and isinstance(value, Mapping) else value


def _at_one_place(folder: RunFolder, there: Any, data: Data) -> Any:
    """Return the run's recipe, with each data file at the current path of the file with the recorded hash."""
    places = moved(folder.known.get(DATA), file_hashes(data))
    corpora = _at(there, "data")
    return _test_by_name({**there, "data": _replaced(corpora, places)} if isinstance(corpora, Mapping) else there)


def _test_by_name(recipe: Any) -> Any:
    """Reduce the files of the test split to their names, since training does not read them."""
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
        return "contains an imported model; "
    if folder.holds_quantized:
        return f"contains a run in {folder.known[QUANTIZED]}; "
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is None:
        there = _worth_keeping(folder)
        if there:
            return f"contains {there}, but no checkpoint; "
        return "contains a run without a checkpoint; --resume restarts it, "
    progress = read_progress(checkpoint)
    if progress.finished:
        return f"contains a finished run of {progress.step:,} steps; "
    return f"contains a run that stopped at step {progress.step:,}; --resume continues it, "


def _worth_keeping(folder: RunFolder) -> str:
    """Name the files that a run without a checkpoint would lose by a restart, or ""."""
    found = [name for name in (WEIGHTS, EVALUATION) if (folder / name).exists()]
    found += ["the record of a finished run"] if folder.holds_run and "finished" in folder.known else []
    found += [f"{CHECKPOINTS}/{name}" for name in in_checkpoints(folder.path)[:3]]
    found += [f"{path.name}/" for path in _renamed(folder)]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _renamed(folder: RunFolder) -> list[Path]:
    """Return folders that look like the run's checkpoints under another name."""
    places = [path for path in folder.path.iterdir() if path.is_dir() and path.name != CHECKPOINTS]
    return sorted(path for path in places if Checkpoints(path).last() is not None)


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key, ABSENT) if isinstance(data, Mapping) else ABSENT
    return data


def differences(there: Any, here: Any, path: str, sides: tuple[str, str] = ("run", "recipe")) -> Iterator[str]:
    """Yield a line for each difference of two resolved recipes, by dotted key."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*there, *here]):
            yield from differences(there.get(key, ABSENT), here.get(key, ABSENT), f"{path}.{key}", sides)
    elif there is ABSENT and here in OFF:
        return  # option added after the version that wrote the run
    elif there != here:
        yield f"{path}: {_shown(there)} in the {sides[0]}, {_shown(here)} in the {sides[1]}"


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else "none" if value is None else f"{value}"
