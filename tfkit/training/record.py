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
from tfkit.training.folder import CARD, ENVIRONMENT, LABELS, OURS, RESOLVED, TOKENIZERS, RunFolder
from tfkit.training.weights_file import is_weights_file, opened

SMALL = (RESOLVED, *TOKENIZERS, LABELS, ENVIRONMENT)  # small files needed to load a run
OWN = tuple(name for name in OURS if name != checksums.SUMS)
REMEDY = "; --accept-changes records the current file"


def record_run(folder: RunFolder, more: Iterable[Path]) -> None:
    """Write the manifest of a run: of tfkit's files, and `more` files in the folder."""
    names = [*OWN, CARD, *(path.relative_to(folder.path).as_posix() for path in more)]
    checksums.write(folder.path, checksums.hashes_of(folder.path, names))


def record_all(folder: Path) -> None:
    """Write a manifest of all files in a folder that tfkit wrote entirely."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.name.startswith(".")]
    checksums.write(folder, checksums.hashes_of(folder, names))


def check_listed(folder: RunFolder, inside: str) -> None:
    """Raise RunError if a file of the manifest in the subfolder `inside` has changed."""
    listed = checksums.read_sums(folder.path) or {}
    check(folder, [name for name in listed if name.startswith(f"{inside}/") and _is_inside(name)])


def check(folder: RunFolder, names: Iterable[str]) -> None:
    """Raise RunError for the first of these files that has changed."""
    for name in names:
        checksums.check(folder.path, name, REMEDY)


def check_existing(folder: RunFolder, *names: str) -> None:
    """Raise RunError if one of these files exists and has changed."""
    check(folder, [name for name in names if (folder / name).exists()])


def changed(folder: RunFolder, names: Iterable[str]) -> Iterator[str]:
    """Yield one message for each of these files that has changed."""
    for name in names:
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


@contextlib.contextmanager
def accepting(*folders: Path) -> Iterator[None]:
    """Trust the files of these runs and checkpoints in the block, then record their hashes and warn about changes.

    Raise RunError, recording nothing, if a weights or JSON file is incomplete, or if the block fails to read the rest.
    """
    current: dict[Path, checksums.Sums] = {}
    for folder in folders:
        names = dict.fromkeys([*OWN, *NEEDED, *MORE, *filter(_is_inside, checksums.trusted_sums(folder))])
        for path in (folder / name for name in names):
            if is_weights_file(path) and path.is_file():
                with opened(path):
                    pass
            elif path.name in OWN and path.suffix == ".json" and path.is_file():
                read_json(path)
        if has_record(RunFolder(folder)):
            current[folder] = checksums.hashes_of(folder, names)
    before = {folder: checksums.trusted_sums(folder) for folder in current}
    trusted = {folder.absolute() for folder in folders}
    checksums.UNCHECKED.update(trusted)
    try:
        yield
    finally:
        checksums.UNCHECKED.difference_update(trusted)
    for folder, sums in current.items():
        if has_record(RunFolder(folder)):
            checksums.write(folder, {name: found for name, found in sums.items() if (folder / name).exists()})
        for name in sorted(before[folder].keys() | sums.keys()):
            if name not in sums or sums[name][0] not in before[folder].get(name, ()):
                what = "recorded as it is now" if name in sums else "missing; removed from the record"
                warnings.warn(f"{folder / name}: {what}", TfkitWarning, stacklevel=4)


def has_record(folder: RunFolder) -> bool:
    """True if the run has a manifest: it is complete, and was not written by an old version."""
    return (folder / checksums.SUMS).exists()


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not Path(name).drive
