"""Safe reading of untrusted folders: only regular files inside the folder, and well-formed JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfkit.core.errors import DataError, RunError
from tfkit.storage.files import read_json, read_text

DEPTH = 32  # maximum nesting of JSON files
CODE = ("auto_map", "custom_pipelines")  # keys that reference code, which is never copied


def file_in(folder: Path, name: str) -> Path | None:
    """Return the file `name` in a folder, or None if it is missing.

    Raise DataError unless it is a regular file or a permitted link.

    A link may point to a file in the folder or, in a snapshot of the hub's cache, to a blob of its repository.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        home, real = folder.resolve(strict=True), path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise DataError(f"{path}: is a broken link") from None
    if not (real.is_relative_to(home) or real.parent == _blobs(home)):
        raise DataError(f"{path}: is a link to another folder and is not followed; copy the file instead")
    if not real.is_file():
        raise DataError(f"{path}: is not a regular file")
    return path


def _blobs(home: Path) -> Path | None:
    """Return the blobs folder for a snapshot of the hub's cache, or None for other folders."""
    return home.parent.parent / "blobs" if home.parent.name == "snapshots" else None


def text_in(path: Path) -> str:
    """Return the text of a file. Raise DataError if it cannot be read."""
    try:
        return read_text(path)
    except RunError as error:
        raise DataError(str(error)) from None


def mapping_in(path: Path) -> dict[str, object]:
    """Return the mapping in a JSON file.

    Raise DataError if it contains anything else, or a value that cannot be written as JSON again.
    """
    try:
        data = read_json(path)
    except RunError as error:
        raise DataError(str(error)) from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a mapping")
    _check(path, data)
    return data


def without_code(data: Mapping[str, object]) -> dict[str, object]:
    """Return `data` without references to code at any level, and without a tokenizer class defined in such code."""
    dropped = (*CODE, "tokenizer_class") if any(key in data for key in CODE) else ()
    return {
        key: without_code(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if key not in dropped
    }


def _check(path: Path, data: Any) -> None:
    """Raise DataError for excessive nesting or invalid Unicode."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise DataError(f"{path}: is nested more than {DEPTH} levels deep")
        keys = [key for part in level if isinstance(part, dict) for key in part]
        below = [entry for part in level for entry in (part.values() if isinstance(part, dict) else part)]
        for text in (text for text in [*keys, *below] if isinstance(text, str)):
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise DataError(f"{path}: {text!r:.60} contains a lone surrogate (half of a character)")
        level = [part for part in below if isinstance(part, (dict, list))]
