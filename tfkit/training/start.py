"""Checks before a run is resumed or replaced, and their error messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tfkit.core.errors import RunError
from tfkit.core.output import counted
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.sections import Data
from tfkit.storage.files import read_yaml
from tfkit.training.changed import DATA, file_hashes, moved
from tfkit.training.checkpoint import Checkpoints, read_progress
from tfkit.training.contents import in_checkpoints
from tfkit.training.folder import CHECKPOINTS, ENVIRONMENT, EVALUATION, QUANTIZED, RESOLVED, WEIGHTS, RunFolder

# keys that a resumed run may not change; steps and intervals may change
GROUPED = ("train.groups", "train.layer_decay")  # define the optimizer's parameter groups
TEACHER = "train.teacher"
FROZEN = ("train.freeze", "train.adapter")
FIXED = ("model", "data", "objective", "train.seed", "train.optimizer.type", *FROZEN, TEACHER, *GROUPED)
ABSENT = object()
OFF: tuple[object, ...] = (False, "none", [])


def check_free_or_run(folder: RunFolder) -> None:
    """Raise RunError if the path is occupied by something other than a run."""
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError(f"{folder}: is a file; choose another --out")
    if folder.is_free or folder.holds_run:
        return
    if (folder / ENVIRONMENT).is_file() and (folder / RESOLVED).is_file():
        try:
            _ = folder.known
        except RunError as error:
            raise RunError(f"{error}; this run cannot be resumed without it. Choose another --out") from None
    raise RunError(f"{folder}: not empty and not a tfkit run; choose another --out")


def check_use(folder: RunFolder, resume: bool, force: bool) -> None:
    """Raise RunError if the existing run can be neither resumed nor replaced with these options."""
    if resume and folder.holds_import:
        hint = f"to start from its weights, use train.init_from: {folder}"
        raise RunError(f"{folder}: contains an imported model, which has no training to resume; {hint}")
    if resume and folder.holds_quantized:
        what = f"contains {folder.known[QUANTIZED]} weights, which cannot be trained"
        raise RunError(f"{folder}: {what}; resume the run from which they were quantized, or choose another --out")
    if not (resume or force):
        raise RunError(f"{folder}: {_describe_contents(folder)}--force replaces it, or choose another --out")


def check_nothing_is_lost(folder: RunFolder) -> None:
    """Raise RunError if training cannot resume and a restart would lose results."""
    if results := _worth_keeping(folder):
        if folder.holds_run and CHECKPOINTS in folder.removed:
            text = "a study has deleted its checkpoints (study.keep), so it cannot be resumed"
            raise RunError(f"{folder}: {text}; --force replaces the run, or choose another --out")
        hints = [f"if {path.name} contains its checkpoints, rename it to {CHECKPOINTS}; " for path in _renamed(folder)]
        raise RunError(
            f"{folder}: contains {results}, but no checkpoint to resume from, and --resume deletes nothing; "
            f"{''.join(hints)}--force replaces the run, or choose another --out"
        )


def check_same(folder: RunFolder, resolved: str, data: Data | None = None) -> None:
    """Raise RunError if the recipe differs from the run's in a key that must not change.

    A run without resolved.yaml is not checked. With the recipe's `data`, files that were only moved count as unchanged.
    """
    old, new = _both(folder, resolved, data)
    found = [line for key in FIXED for line in differences(_fixed(old, key), _fixed(new, key), key)]
    if found:
        more = f"\n  and {len(found) - 5} more" if len(found) > 5 else ""
        raise RunError(
            f"{folder}: was started from another recipe and cannot be resumed with this one:\n  "
            + "\n  ".join(found[:5])
            + more
        )


def check_steps(folder: RunFolder, step: int, recipe: Recipe, steps: int) -> None:
    """Raise RunError if the run is beyond the last of the recipe's `steps`."""
    if step <= steps:
        return
    epochs = recipe.train.epochs
    last, remedy = f"train.steps: {steps:,}", f"set train.steps to {step:,} or more"
    if epochs is not None:
        last, remedy = f"train.epochs: {epochs} ({counted(steps, 'step')})", "increase train.epochs"
    raise RunError(f"{folder}: is at step {step:,}, beyond {last}; {remedy}, or choose another --out")


def changed_keys(folder: RunFolder, resolved: str, data: Data | None = None) -> list[str]:
    """Return a line that names the keys that differ from the last start, or [] if none is known to differ."""
    old, new = _both(folder, resolved, data)
    keys = dict.fromkeys([*old, *new])
    found = [line for key in keys for line in differences(_at(old, key), _at(new, key), key)]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return [f"changed since the last start: {'; '.join(found[:5])}{more}"] if found else []


def _both(folder: RunFolder, resolved: str, data: Data | None) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the recipe of the last start and the new one, where files that were only moved are equal.

    Both are empty if the run has no resolved.yaml.
    """
    if not (folder / RESOLVED).is_file():
        return {}, {}
    old, new = read_yaml(folder / RESOLVED), yaml.safe_load(resolved)
    if data is not None and _at(old, "data") != _at(new, "data"):
        old, new = _with_moved_files(folder, old, data), _test_by_name(new)
    return old, new


def _fixed(recipe: Any, key: str) -> Any:
    """Return the value at a key, without options that may change on resume."""
    value = _at(recipe, key)
    if key == "data" and isinstance(value, Mapping):
        return {name: option for name, option in value.items() if name != "shards"}  # does not change the batches
    # the teacher may have moved: its weights are identified by their hash
    return {**value, "run": ""} if key == TEACHER and isinstance(value, Mapping) else value


def _with_moved_files(folder: RunFolder, recipe: Any, data: Data) -> Any:
    """Replace the paths of moved data files in the run's recipe; files are identified by their recorded hash."""
    places = moved(folder.known.get(DATA), file_hashes(data))
    corpora = _at(recipe, "data")
    return _test_by_name({**recipe, "data": _replaced(corpora, places)} if isinstance(corpora, Mapping) else recipe)


def _test_by_name(recipe: Any) -> Any:
    """Reduce paths in the test split to file names, since training does not read its files."""
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


def _describe_contents(folder: RunFolder) -> str:
    if folder.holds_import:
        return "contains an imported model; "
    if folder.holds_quantized:
        return f"contains a run in {folder.known[QUANTIZED]}; "
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is None:
        results = _worth_keeping(folder)
        if results:
            return f"contains {results}, but no checkpoint; "
        return "contains a run without a checkpoint; --resume restarts it, "
    progress = read_progress(checkpoint)
    if progress.finished:
        return f"contains a finished run of {progress.step:,} steps; "
    return f"contains a run that stopped at step {progress.step:,}; --resume continues it, "


def _worth_keeping(folder: RunFolder) -> str:
    """List the files that would be lost if a run without a checkpoint were restarted."""
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


def differences(old: Any, new: Any, path: str, sides: tuple[str, str] = ("run", "recipe")) -> Iterator[str]:
    """Yield a line for each dotted key whose values differ between two resolved recipes."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}", sides)
    elif old is ABSENT and new in OFF:
        return  # the run was written by a version without this option
    elif old != new:
        yield f"{path}: {_shown(old)} in the {sides[0]}, {_shown(new)} in the {sides[1]}"


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else "none" if value is None else f"{value}"
