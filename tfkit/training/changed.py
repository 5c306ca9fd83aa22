"""Hashes of the training data, recorded in environment.json so that --resume detects changes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfkit.core.component import Config
from tfkit.core.slots import CorpusFacts
from tfkit.data.vectors import Vectors
from tfkit.recipe.settings.sections import Data, Train
from tfkit.recipe.text.options import path_values
from tfkit.storage.checksums import sha256_of
from tfkit.training.folder import RESOLVED, WEIGHTS

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
    return {name: {EXAMPLES: _hash_all(rows)} for name, rows in examples.items() if name not in held}


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
    read = {name: _read_by(getattr(data, name)) for name in ("train", "valid", "tokenizer")}
    return {name: files for name, files in read.items() if files and all(os.path.isfile(file) for file in files)}


def _read_by(config: Config | None) -> tuple[str, ...]:
    if isinstance(config, CorpusFacts.Config):
        return config.files_read()
    return () if config is None else path_values(config)


def _hash_all(examples: Iterable[Mapping[str, str]]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps(example).encode("ascii") + b"\n")
        for value in example.values():
            if isinstance(value, Vectors):
                digest.update(f"{value.array.shape}".encode("ascii") + value.array.tobytes())
    return digest.hexdigest()
