"""Pointers of a study to runs in other folders: runs/NAME.reused.json names the run that serves as NAME."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.storage.checksums import sha256_of
from tfkit.storage.files import read_json, write_json
from tfkit.training.folder import RUN, RunFolder

SUFFIX = ".reused.json"


@dataclass(frozen=True)
class ReusedRun:
    """A run in another folder, with the SHA-256 that its run.json had when it was taken."""

    folder: RunFolder
    sha256: str

    @property
    def is_replaced(self) -> bool:
        """True if the folder now holds other results."""
        try:
            return sha256_of(self.folder / RUN) != self.sha256
        except RunError:
            return True


def pointer_of(own: Path) -> Path:
    """Return the path of the pointer that replaces a run folder of the study."""
    return own.with_name(f"{own.name}{SUFFIX}")


def read_reused(own: Path) -> ReusedRun | None:
    """Return the run that serves as the study's own; None if there is none, or if its pointer is damaged."""
    file = pointer_of(own)
    if own.exists() or not file.is_file():
        return None
    try:
        data = read_json(file)
    except RunError:
        return None
    run, sha256 = (data.get("run"), data.get("sha256")) if isinstance(data, dict) else (None, None)
    if not isinstance(run, str) or not isinstance(sha256, str):
        return None
    return ReusedRun(RunFolder(Path(os.path.normpath(own.parent / run))), sha256)


def write_reused(own: Path, found: RunFolder) -> None:
    """Write the pointer, with a relative path, so that both folders can be moved together."""
    path = os.path.relpath(found.path.absolute(), own.parent.absolute())
    write_json(pointer_of(own), {"run": path, "sha256": sha256_of(found / RUN)})
