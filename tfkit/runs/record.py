"""The checksum manifest of a run folder (SHA256SUMS), hashes of its data, and damaged files set aside."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel

from tfkit.core.errors import RunError, TfkitWarning
from tfkit.core.slots import CorpusFacts
from tfkit.data.vectors import digest
from tfkit.recipe.settings.sections import Data, Train
from tfkit.recipe.text.faults import path_values
from tfkit.runs.checkpoint import MORE, NEEDED, Checkpoints, step_of
from tfkit.runs.folder import (
    CARD,
    CHECKPOINTS,
    ENVIRONMENT,
    EVALUATION,
    LABELS,
    LOG,
    METRICS,
    OURS,
    RECIPE,
    RESOLVED,
    RUN,
    TOKENIZERS,
    WEIGHTS,
    RunFolder,
)
from tfkit.runs.history import good_lines, read_history, step_in
from tfkit.runs.weights import is_weights_file, opened
from tfkit.storage import checksums
from tfkit.storage.checksums import sha256_of
from tfkit.storage.files import damaged_name, open_log, read_bytes, read_json, read_text, read_yaml

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


DATA = "data"  # key in environment.json
TEACHER = "teacher"  # key of the teacher's files
EXAMPLES = "examples"  # key of corpora that are not read from files
Hashes = dict[str, dict[str, str]]  # train, valid, tokenizer -> file or EXAMPLES -> SHA-256


def file_hashes(data: Data) -> Hashes:
    """Return the SHA-256 of each data file used in training. Raise RunError if a file cannot be read."""
    return {name: {file: hash_of(file) for file in files} for name, files in _files(data).items()}


def hash_of(file: str) -> str:
    """Return the SHA-256 of a file, cached until its size or modification time changes."""
    status = os.stat(file)
    return _hash_of(file, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _hash_of(file: str, size: int, changed: int) -> str:
    return sha256_of(Path(file))


def teacher_hashes(train: Train) -> Hashes:
    """Return the SHA-256 of those of the teacher's weights and recipe that exist."""
    if train.teacher is None:
        return {}
    files = [Path(train.teacher.run) / name for name in (WEIGHTS, RESOLVED)]
    return {TEACHER: {f"the teacher's {file.name}": sha256_of(file) for file in files if file.is_file()}}


def example_hashes(data: Data, examples: Mapping[str, Iterable[Mapping[str, str]]]) -> Hashes:
    """Return the SHA-256 of the examples of each split that is not read from files."""
    held = _files(data)
    return {name: {EXAMPLES: digest(rows)} for name, rows in examples.items() if name not in held}


def differences(before: Any, now: Hashes) -> dict[str, list[str]]:
    """Map each changed file to the sections that read it (train, valid, tokenizer). Skip files without a hash."""
    found: dict[str, list[str]] = {}
    for name, known, hashes in _recorded(before, now):
        for what, sha256 in hashes.items():
            if known.get(what) not in (None, sha256):
                found.setdefault(f"the examples of data.{name}" if what == EXAMPLES else what, []).append(name)
    return found


def moved(before: Any, now: Hashes) -> dict[str, str]:
    """Map the old path of each moved but unchanged file to its new path."""
    found: dict[str, str] = {}
    for _, known, hashes in _recorded(before, now):
        gone = {sha256: file for file, sha256 in known.items() if file not in hashes and isinstance(sha256, str)}
        found |= {gone[sha256]: file for file, sha256 in hashes.items() if file not in known and sha256 in gone}
    return found


def _recorded(before: Any, now: Hashes) -> Iterator[tuple[str, Mapping[str, Any], dict[str, str]]]:
    """Yield each section with its recorded hashes and those of now."""
    for name, hashes in now.items():
        known = before.get(name) if isinstance(before, Mapping) else None
        if isinstance(known, Mapping):
            yield name, known, hashes


def _files(data: Data) -> dict[str, tuple[str, ...]]:
    """Return the data files of each section, omitting sections whose data are not read from files."""
    parts: dict[str, BaseModel | None] = {**dict(data.splits()), "tokenizer": data.tokenizer}
    read = {name: _read_by(parts.get(name)) for name in ("train", "valid", "tokenizer")}
    return {name: files for name, files in read.items() if files and all(os.path.isfile(file) for file in files)}


def _read_by(config: BaseModel | None) -> tuple[str, ...]:
    if isinstance(config, CorpusFacts.Config):
        return config.files_read()
    return () if config is None else path_values(config)


UNCHECKED = "the recipe cannot be compared with the run's"


def mend(folder: RunFolder) -> Iterator[str]:
    """Move damaged files aside, and yield one message per file. Raise RunError if a file cannot be moved."""
    last = Checkpoints(folder / CHECKPOINTS).last()
    if last is not None and not (folder / RESOLVED).exists():
        yield f"{folder / RESOLVED}: is missing; {UNCHECKED}"
    for name in READERS:
        file = folder / name
        if file.exists() and (why := _damage(folder, name)):
            aside = damaged_name(file)
            with checksums.changing(folder.path, name):
                try:
                    os.rename(file, aside)
                except OSError as error:
                    raise RunError(f"{file}: cannot be renamed: {error.strerror}") from None
            unchecked = f"; {UNCHECKED}" if name == RESOLVED else ""
            yield f"{file}: {why}; moved to {aside.name}; a new file is started{unchecked}"
    file, step = folder / METRICS, 0 if last is None else step_of(last)
    lines = good_lines(read_bytes(file))[0] if file.exists() else []
    if missing := step - len({step_in(line) for line in lines if step_in(line) <= step}):
        yield f"{file}: the lines of {missing:,} of {step:,} steps are missing"


def _damage(folder: RunFolder, name: str) -> str:
    """Return what is wrong with a file, or ""."""
    try:
        READERS[name](folder / name)
    except RunError as error:
        return str(error).removeprefix(f"{folder / name}: ")
    return "has changed since it was written" if any(changed(folder, [name])) else ""


def _read_scores(file: Path) -> None:
    if not isinstance(read_json(file), dict):
        raise RunError(f"{file}: contains no scores")


def _read_metrics(file: Path) -> None:
    """Raise RunError for damaged lines. A truncated last line, left by a killed process, is accepted."""
    if bad := good_lines(read_bytes(file))[1]:
        raise RunError(f"{file}: {bad:,} damaged lines")


READERS: dict[str, Callable[[Path], object]] = {
    RESOLVED: read_yaml,
    RECIPE: read_text,
    EVALUATION: _read_scores,
    RUN: lambda file: read_history(RunFolder(file.parent)),
    LOG: lambda file: open_log(file).close(),
    METRICS: _read_metrics,
}
