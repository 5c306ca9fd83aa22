"""The checksum manifest of a run folder (SHA256SUMS), and checks for changed files."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage import checksums
from tfkit.storage.files import read_json
from tfkit.training.checkpoint import MORE, NEEDED
from tfkit.training.folder import (
    ENVIRONMENT,
    LABELS,
    LOG,
    METRICS,
    OURS,
    RESOLVED,
    TOKENIZERS,
    WEIGHTS,
    RunFolder,
)
from tfkit.training.weights_file import is_weights_file, opened

APPENDED = (METRICS, LOG)  # files that grow during training; recorded when training stops
SMALL = (RESOLVED, *TOKENIZERS, LABELS, ENVIRONMENT)  # small files needed to load a run
OWN = tuple(name for name in OURS if name not in (*APPENDED, checksums.SUMS))
REMEDY = "; --accept-changes records the current file"


def begin(folder: RunFolder, more: Iterable[Path] = ()) -> None:
    """Create the manifest of a new run, or of a run that an older version wrote without one."""
    names = [name for name in OWN if (folder / name).is_file()]
    checksums.begin(folder.path, [*names, *(path.relative_to(folder.path).as_posix() for path in more)])


def record_all(folder: Path) -> None:
    """Create a manifest of all files in a folder that tfkit wrote entirely."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    checksums.begin(folder, [path.relative_to(folder).as_posix() for path in files])


def check_listed(folder: RunFolder, inside: str) -> None:
    """Raise RunError if a file of the manifest in the subfolder `inside` has changed."""
    listed = checksums.read_sums(folder.path) or {}
    check(folder, [name for name in listed if name.startswith(f"{inside}/") and _is_inside(name)])


def check(folder: RunFolder, names: Iterable[str]) -> None:
    """Raise RunError for the first of these files that has changed."""
    for name in names:
        checksums.check(folder.path, name, REMEDY)


def check_resumed(folder: RunFolder) -> None:
    """Raise RunError if a file that resumption depends on has changed.

    Missing weights are not an error, because training writes them again.
    """
    check(folder, (*TOKENIZERS, LABELS, ENVIRONMENT))
    check_existing(folder, WEIGHTS)


def check_existing(folder: RunFolder, name: str) -> None:
    """Raise RunError if an existing file has changed."""
    if (folder / name).exists():
        check(folder, (name,))


def changed(folder: RunFolder, names: Iterable[str]) -> Iterator[str]:
    """Yield one message for each of these files that has changed.

    If the process was killed, the manifest lacks the files that grow during training; they are not checked.
    """
    for name in names:
        if name in APPENDED and name not in checksums.trusted_sums(folder.path):
            continue
        try:
            checksums.check(folder.path, name)
        except RunError as error:
            yield str(error)


def warn_changed(folder: RunFolder, names: Iterable[str]) -> None:
    """Warn about each of these files that has changed."""
    for message in changed(folder, names):
        warnings.warn(message, TfkitWarning, stacklevel=3)


def checking(folder: RunFolder, name: str) -> AbstractContextManager[None]:
    """Verify a file's checksum in parallel with the block. Raise RunError when the block ends."""
    return checksums.checking(folder.path, name, REMEDY)


def appending(folder: RunFolder) -> None:
    """Drop the files that grow during training from the manifest. Create the manifest if missing."""
    if has_record(folder):
        checksums.settle(folder.path)
        checksums.forget(folder.path, APPENDED)
    else:
        begin(folder)


@contextlib.contextmanager
def completed(folder: RunFolder) -> Iterator[None]:
    """Record the files that grow during training when the block ends, even with an error."""
    try:
        yield
    finally:
        with contextlib.suppress(RunError):  # if the disk is full, the block's own error matters more
            checksums.add(folder.path, APPENDED)


@contextlib.contextmanager
def accepting(*folders: Path) -> Iterator[None]:
    """Trust the files of these runs and checkpoints in the block, then record their hashes and warn about changes.

    Raise RunError, recording nothing, if a weights or JSON file is incomplete, or if the block fails to read the rest.
    """
    for path in (folder / name for folder in folders for name in _acceptable(folder)):
        if is_weights_file(path):
            with opened(path):
                pass
        elif path.name in OWN and path.suffix == ".json":
            read_json(path)
    trusted = {folder.absolute() for folder in folders}
    checksums.UNCHECKED.update(trusted)
    try:
        yield
    finally:
        checksums.UNCHECKED.difference_update(trusted)
    for folder in folders:
        for name in checksums.renew(folder, _acceptable(folder)):
            what = "recorded as it is now" if (folder / name).is_file() else "missing; removed from the record"
            warnings.warn(f"{folder / name}: {what}", TfkitWarning, stacklevel=4)


def has_record(folder: RunFolder) -> bool:
    """True if the run has a manifest, which older versions did not write."""
    return (folder / checksums.SUMS).exists()


def _acceptable(folder: Path) -> list[str]:
    """Return the files of a run or checkpoint that may be recorded: those of tfkit, and others already listed."""
    listed = checksums.trusted_sums(folder)
    names = dict.fromkeys([*OWN, *NEEDED, *MORE, *(name for name in listed if _is_inside(name))])
    return [name for name in names if (folder / name).is_file()]


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not Path(name).drive
