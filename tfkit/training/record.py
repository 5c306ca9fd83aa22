"""The record of a run's files, SHA256SUMS, and the handling of files that have changed since."""

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

APPENDED = (METRICS, LOG)  # these grow while a run is trained: they are on record when it has ended or stopped
SMALL = (RESOLVED, *TOKENIZERS, LABELS, ENVIRONMENT)  # what describes a run
OWN = tuple(name for name in OURS if name not in (*APPENDED, checksums.SUMS))
REMEDY = "; --accept-changes records what is there"


def begin(folder: RunFolder, more: Iterable[Path] = ()) -> None:
    """Start the record of a run that is about to be trained, or that an older version has begun."""
    names = [name for name in OWN if (folder / name).is_file()]
    checksums.begin(folder.path, [*names, *(path.relative_to(folder.path).as_posix() for path in more)])


def record_all(folder: Path) -> None:
    """Start the record of a folder that nobody else has written in, with every file that is in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    checksums.begin(folder, [path.relative_to(folder).as_posix() for path in files])


def check_listed(folder: RunFolder, inside: str) -> None:
    """Raise RunError for a file in the folder `inside` of a run that is on record and not as it was written."""
    listed = checksums.read_sums(folder.path) or {}
    check(folder, [name for name in listed if name.startswith(f"{inside}/") and _is_inside(name)])


def check(folder: RunFolder, names: Iterable[str]) -> None:
    """Raise RunError for the first of these files that is not as it was written."""
    for name in names:
        checksums.check(folder.path, name, REMEDY)


def check_resumed(folder: RunFolder) -> None:
    """Raise RunError where what a run that goes on takes over from before is not as it was written.

    Weights that are gone are written again.
    """
    check(folder, (*TOKENIZERS, LABELS, ENVIRONMENT))
    check_there(folder, WEIGHTS)


def check_there(folder: RunFolder, name: str) -> None:
    """Raise RunError for a file that is there and not as it was written."""
    if (folder / name).exists():
        check(folder, (name,))


def changed(folder: RunFolder, names: Iterable[str]) -> Iterator[str]:
    """Return one sentence for each of these files that is not as it was written.

    A process that was killed leaves the files off the record that it appended to: these are believed.
    """
    for name in names:
        if name in APPENDED and name not in checksums.believed(folder.path):
            continue
        try:
            checksums.check(folder.path, name)
        except RunError as error:
            yield str(error)


def warn_changed(folder: RunFolder, names: Iterable[str]) -> None:
    """Warn of those of these files that are not as they were written."""
    for message in changed(folder, names):
        warnings.warn(message, TfkitWarning, stacklevel=3)


def checking(folder: RunFolder, name: str) -> AbstractContextManager[None]:
    """Check a file within a block that ends when the file is known to be right."""
    return checksums.checking(folder.path, name, REMEDY)


def appending(folder: RunFolder) -> None:
    """Take the files off the record that training appends to; an older run gets a record."""
    if has_record(folder):
        checksums.settle(folder.path)
        checksums.forget(folder.path, APPENDED)
    else:
        begin(folder)


@contextlib.contextmanager
def completed(folder: RunFolder) -> Iterator[None]:
    """Put the files that training appends to on record when the block ends, in whatever way."""
    try:
        yield
    finally:
        with contextlib.suppress(RunError):  # a full disk is no reason to lose what the block has to say
            checksums.add(folder.path, APPENDED)


def accept(folder: RunFolder) -> None:
    """Record the files of a run as they are, and warn of each that had changed; raises RunError for no run."""
    if not folder.holds_run and not (folder / RESOLVED).is_file():
        raise RunError(f"{folder}: holds no run")
    for name in checksums.renew(folder.path, _acceptable(folder)):
        _warn(folder / name)


def accept_checkpoint(folder: RunFolder) -> None:
    """Accept the newest checkpoint as it is."""
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is not None:
        for name in accept_files(checkpoint):
            _warn(checkpoint / name)


def _warn(file: Path) -> None:
    what = "is on record as it is now" if file.is_file() else "is off the record: it is not there"
    warnings.warn(f"{file}: {what}", TfkitWarning, stacklevel=4)


def has_record(folder: RunFolder) -> bool:
    """True if the files of the run are on record; those of older versions are not."""
    return (folder / checksums.SUMS).exists()


def _acceptable(folder: RunFolder) -> list[str]:
    """The files of a run that can be on record: those of its own, and others that are listed already."""
    listed = checksums.believed(folder.path)
    names = dict.fromkeys([*OWN, *(name for name in listed if _is_inside(name))])
    return [name for name in names if (folder / name).is_file()]


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not Path(name).drive
