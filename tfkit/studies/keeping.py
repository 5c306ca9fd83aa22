"""Files that a study keeps of its finished runs (`study.keep`)."""

from __future__ import annotations

import shutil

from tfkit.core.errors import RunError
from tfkit.storage import checksums
from tfkit.storage.locks import FolderBusy, FolderLock
from tfkit.studies.settings import Keep
from tfkit.training.card import drop_prove
from tfkit.training.checkpoint import Checkpoints, is_removable
from tfkit.training.folder import ADAPTER, CHECKPOINTS, ENVIRONMENT, REMOVED, WEIGHTS, RunFolder

DROPPED: dict[Keep, tuple[str, ...]] = {
    "scores": (CHECKPOINTS, WEIGHTS, ADAPTER),
    "weights": (CHECKPOINTS,),
    "all": (),
}


def reduce(folder: RunFolder, keep: Keep) -> None:
    """Delete the files of a finished run that are not kept; a no-op while another process uses the run.

    The names are first recorded in environment.json and dropped from the manifest, so that an interrupted call can be
    repeated.
    """
    names = [name for name in DROPPED[keep] if (folder / name).exists()]
    if not names:
        return
    try:
        lock = FolderLock.take(folder.path, None)
    except FolderBusy:
        return
    try:
        removed = sorted({*folder.removed, *names})
        if removed != list(folder.removed):
            checksums.write_json(folder / ENVIRONMENT, {**folder.known, REMOVED: removed})
        with checksums.changing(folder.path, *names):
            if WEIGHTS in names:
                drop_prove(folder)
            for name in names:
                if name != CHECKPOINTS:
                    (folder / name).unlink(missing_ok=True)
                    continue
                for checkpoint in filter(is_removable, Checkpoints(folder / CHECKPOINTS).all()):
                    shutil.rmtree(checkpoint)
                if not any((folder / CHECKPOINTS).iterdir()):  # else it holds files of the user
                    (folder / CHECKPOINTS).rmdir()
    finally:
        lock.release()


def keeps(folder: RunFolder, keep: Keep) -> bool:
    """True if no study has deleted a file of the run that `keep` retains."""
    try:
        return set(folder.removed) <= set(DROPPED[keep])
    except RunError:
        return False
