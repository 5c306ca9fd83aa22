"""Which folder a run goes to, and whether what is there may be continued or replaced."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tfkit.core.errors import RunError, UsageError
from tfkit.training.checkpoint import Checkpoints, read_progress
from tfkit.training.folder import CHECKPOINTS, RESOLVED, RunFolder

RUNS = Path("runs")
# what a run is about: with other values it would be another run; steps and intervals may change
FIXED = ("model", "data", "objective", "train.seed", "train.optimizer.type", "train.freeze")
ABSENT = object()


def choose_folder(name: str, out: str | Path | None, resume: bool, force: bool) -> RunFolder:
    """The folder to train in. Raises RunError for one that may not be used; changes nothing."""
    if resume and force:
        raise UsageError("--resume goes on with what is there and --force replaces it; give one of the two")
    folder = RunFolder(Path(out) if out is not None else _default(name, resume))
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError(f"{folder}: is a file; a run needs a folder")
    if folder.is_free:
        return folder
    if not folder.holds_run:
        raise RunError(f"{folder}: is not empty and holds no run of tfkit; choose another --out")
    if resume and folder.holds_import:
        begin = f"to begin with its weights say train.init_from: {folder}"
        raise RunError(f"{folder}: holds an imported model, which has no training to resume; {begin}")
    if not (resume or force):
        raise RunError(f"{folder}: {_what_is_there(folder)}--force replaces it, or choose another --out")
    return folder


def check_same(folder: RunFolder, resolved: str) -> None:
    """Raise RunError when the run in `folder` was started from another model, other data or another objective."""
    try:
        there = yaml.safe_load((folder / RESOLVED).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise RunError(f"{folder / RESOLVED}: cannot be read, so this run cannot be resumed: {error}") from None
    here = yaml.safe_load(resolved)
    found = [line for key in FIXED for line in _differences(_at(there, key), _at(here, key), key)]
    if found:
        more = f"\n  and {len(found) - 5} more" if len(found) > 5 else ""
        raise RunError(
            f"{folder}: was started from another recipe, so it cannot be resumed with this one:\n  "
            + "\n  ".join(found[:5])
            + more
        )


def _default(name: str, resume: bool) -> Path:
    """runs/<name>, with the next free number behind it; the newest there is, when resuming."""
    numbers = [0]
    for path in RUNS.glob(f"{glob.escape(name)}*") if RUNS.is_dir() else ():
        found = re.fullmatch(re.escape(name) + r"(?:-(\d+))?", path.name)
        if found is not None and not RunFolder(path).is_free:
            numbers.append(int(found[1] or 1))
    number = max(1, max(numbers) + (not resume))
    return RUNS / (name if number == 1 else f"{name}-{number}")


def _what_is_there(folder: RunFolder) -> str:
    if folder.holds_import:
        return "holds an imported model; "
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is None:
        return "holds a run that never came to a checkpoint; --resume starts it again, "
    progress = read_progress(checkpoint)
    if progress.finished:
        return f"holds a finished run of {progress.step:,} steps; "
    return f"holds a run that stopped at step {progress.step:,}; --resume continues it, "


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key, ABSENT) if isinstance(data, Mapping) else ABSENT
    return data


def _differences(there: Any, here: Any, path: str) -> Iterator[str]:
    """Lines that say where two readings differ, by dotted key."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*there, *here]):
            yield from _differences(there.get(key, ABSENT), here.get(key, ABSENT), f"{path}.{key}")
    elif there != here:
        yield f"{path}: {_shown(there)} in the run, {_shown(here)} in the recipe"


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else f"{value}"
