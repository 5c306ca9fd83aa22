"""The checksum manifest of a run folder, SHA256SUMS, and the handling of changed files."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage import checksums
from tfkit.training.checkpoint import Checkpoints, accept_files
from tfkit.training.folder import (
    CHECKPOINTS,
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

APPENDED = (METRICS, LOG)  # files that grow during training: recorded when it ends or stops
SMALL = (RESOLVED, *TOKENIZERS, LABELS, ENVIRONMENT)  # files that describe a run
OWN = tuple(name for name in OURS if name not in (*APPENDED, checksums.SUMS))
REMEDY = "; --accept-changes records the current file"


def begin(folder: RunFolder, more: Iterable[Path] = ()) -> None:
    """Create the manifest of a new run, or of a resumed one from an older version."""
    names = [name for name in OWN if (folder / name).is_file()]
    checksums.begin(folder.path, [*names, *(path.relative_to(folder.path).as_posix() for path in more)])


def record_all(folder: Path) -> None:
    """Create the manifest of a folder that only tfkit wrote, with every file in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    checksums.begin(folder, [path.relative_to(folder).as_posix() for path in files])


def check_listed(folder: RunFolder, inside: str) -> None:
    """Raise RunError for a changed file of the manifest in the subfolder `inside`."""
    listed = checksums.read_sums(folder.path) or {}
    check(folder, [name for name in listed if name.startswith(f"{inside}/") and _is_inside(name)])


def check(folder: RunFolder, names: Iterable[str]) -> None:
    """Raise RunError for the first of these files that has changed."""
    for name in names:
        checksums.check(folder.path, name, REMEDY)


def check_resumed(folder: RunFolder) -> None:
    """Raise RunError if a file that a resumed run depends on has changed.

    Missing weights are rewritten.
    """
    check(folder, (*TOKENIZERS, LABELS, ENVIRONMENT))
    check_there(folder, WEIGHTS)


def check_there(folder: RunFolder, name: str) -> None:
    """Raise RunError if an existing file has changed."""
    if (folder / name).exists():
        check(folder, (name,))


def changed(folder: RunFolder, names: Iterable[str]) -> Iterator[str]:
    """Yield one message for each of these files that has changed.

    A killed process leaves the files it appended to off the manifest; these are trusted.
    """
    for name in names:
        if name in APPENDED and name not in checksums.trusted_sums(folder.path):
            continue
        try:
            checksums.check(folder.path, name)
        except RunError as error:
            yield str(error)


def warn_changed(folder: RunFolder, names: Iterable[str]) -> None:
    """Warn about changed files among these."""
    for message in changed(folder, names):
        warnings.warn(message, TfkitWarning, stacklevel=3)


def checking(folder: RunFolder, name: str) -> AbstractContextManager[None]:
    """Verify a file's checksum in parallel with the block. Raise RunError when the block ends."""
    return checksums.checking(folder.path, name, REMEDY)


def appending(folder: RunFolder) -> None:
    """Drop the files that training appends to from the manifest; create a missing one."""
    if has_record(folder):
        checksums.settle(folder.path)
        checksums.forget(folder.path, APPENDED)
    else:
        begin(folder)


@contextlib.contextmanager
def completed(folder: RunFolder) -> Iterator[None]:
    """Record the files that training appends to when the block ends, even by an error."""
    try:
        yield
    finally:
        with contextlib.suppress(RunError):  # a full disk must not hide the error of the block
            checksums.add(folder.path, APPENDED)


def accept(folder: RunFolder) -> None:
    """Record the current files of a run and warn about each that had changed. Raise RunError if it is no run."""
    if not folder.holds_run and not (folder / RESOLVED).is_file():
        raise RunError(f"{folder}: contains no run")
    for name in checksums.renew(folder.path, _acceptable(folder)):
        _warn(folder / name)


def accept_checkpoint(folder: RunFolder) -> None:
    """Accept the newest checkpoint as it is."""
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is not None:
        for name in accept_files(checkpoint):
            _warn(checkpoint / name)


def _warn(file: Path) -> None:
    what = "recorded as it is now" if file.is_file() else "removed from the record: it is missing"
    warnings.warn(f"{file}: {what}", TfkitWarning, stacklevel=4)


def has_record(folder: RunFolder) -> bool:
    """True if the run has a manifest; older versions wrote none."""
    return (folder / checksums.SUMS).exists()


def _acceptable(folder: RunFolder) -> list[str]:
    """Return the files of a run that can be recorded: its own, and others already listed."""
    listed = checksums.trusted_sums(folder.path)
    names = dict.fromkeys([*OWN, *(name for name in listed if _is_inside(name))])
    return [name for name in names if (folder / name).is_file()]


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not Path(name).drive
