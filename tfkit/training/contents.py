"""Checks of the files that tfkit writes to a run folder: removal of unfinished files, refusal of links."""

from __future__ import annotations

import re
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.storage.files import remove_leftovers
from tfkit.training.checkpoint import FILES, UNFINISHED
from tfkit.training.folder import CARD, CHECKPOINTS, OURS

_CHECKPOINT = re.compile(rf"step-\d{{8,}}(\.damaged(-\d+)?)?|{UNFINISHED.pattern}")  # complete, damaged or unfinished


def clean_up(folder: Path) -> None:
    """Remove unfinished files of killed processes.

    Raise RunError if that fails, or if an entry that tfkit writes is a link or of the wrong kind.
    """
    _check(folder / CHECKPOINTS, is_folder=True)
    places: dict[Path, tuple[str, ...]] = {folder: (*OURS, CARD)}
    for path in sorted((folder / CHECKPOINTS).iterdir()) if (folder / CHECKPOINTS).is_dir() else ():
        if _CHECKPOINT.fullmatch(path.name):
            _check(path, is_folder=True)
            places[path] = FILES
    for place, names in places.items():
        for name in names:
            if name != CARD:
                _check(place / name, is_folder=False)
    for place, names in places.items():
        remove_leftovers(place, names)


def in_checkpoints(folder: Path) -> list[str]:
    """List the entries of the checkpoints folder, without unfinished checkpoints."""
    place = folder / CHECKPOINTS
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    return [name for name in names if UNFINISHED.fullmatch(name) is None]


def _check(path: Path, is_folder: bool) -> None:
    if path.is_symlink():
        raise RunError(f"{path}: is a link, so tfkit would write outside the run; replace it with its target")
    if path.exists() and not (path.is_dir() if is_folder else path.is_file()):
        raise RunError(f"{path}: not a {'folder' if is_folder else 'regular file'}, as required here; move it away")
