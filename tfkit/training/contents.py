"""Checks of the files that tfkit writes to a run folder: removal of unfinished files, refusal of links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.storage.files import remove_leftovers
from tfkit.training.checkpoint import FILES
from tfkit.training.folder import CARD, CHECKPOINTS, OURS

_UNFINISHED = r"\.step-\d{8,}(\.[0-9a-f]{16})?\.tmp"  # name of a checkpoint while it is being written
_CHECKPOINT = re.compile(rf"step-\d{{8,}}(\.damaged(-\d+)?)?|{_UNFINISHED}")  # complete, damaged or unfinished


def clean_up(folder: Path) -> None:
    """Remove unfinished files of killed processes. Raise RunError if a file cannot be removed."""
    remove_leftovers(folder, (*OURS, CARD))
    for checkpoint in _checkpoints(folder):
        remove_leftovers(checkpoint, FILES)


def check_regular(folder: Path) -> None:
    """Raise RunError if an entry that tfkit writes is a link or of the wrong kind."""
    for name in OURS:
        _check(folder / name, is_folder=False)
    _check(folder / CHECKPOINTS, is_folder=True)
    for path in (folder / CHECKPOINTS).iterdir() if (folder / CHECKPOINTS).is_dir() else ():
        if _CHECKPOINT.fullmatch(path.name):
            _check(path, is_folder=True)
            for name in FILES:
                _check(path / name, is_folder=False)


def in_checkpoints(folder: Path) -> list[str]:
    """List the entries of the checkpoints folder, without unfinished checkpoints."""
    place = folder / CHECKPOINTS
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    return [name for name in names if re.fullmatch(_UNFINISHED, name) is None]


def _checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the folders named like checkpoints."""
    place = folder / CHECKPOINTS
    if place.is_dir() and not place.is_symlink():
        for path in sorted(place.iterdir()):
            if _CHECKPOINT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield path


def _check(path: Path, is_folder: bool) -> None:
    if path.is_symlink():
        raise RunError(f"{path}: is a link, so tfkit would write outside the run; replace it with its target")
    if path.exists() and not (path.is_dir() if is_folder else path.is_file()):
        raise RunError(f"{path}: not a {'folder' if is_folder else 'regular file'}, as required here; move it away")
