"""Files of a folder that somebody else made: regular, within that folder, and JSON that everything else can take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfkit.core.errors import DataError, RunError
from tfkit.core.files import read_json, read_text

DEPTH = 32  # mappings and lists within one another
CODE = ("auto_map", "custom_pipelines")  # keys that name code, which never travels


def file_in(folder: Path, name: str) -> Path | None:
    """The file of that name in a folder, None where there is none; raises DataError for what is no regular file.

    A link may lead to a file within the folder; that of a snapshot in the hub's cache also to its repository's blobs.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        home, real = folder.resolve(strict=True), path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise DataError(f"{path}: is a link that leads to nothing") from None
    if not (real.is_relative_to(home) or real.parent == _blobs(home)):
        raise DataError(f"{path}: is a link out of its folder, which is not followed: put the file there instead")
    if not real.is_file():
        raise DataError(f"{path}: is not a regular file")
    return path


def _blobs(home: Path) -> Path | None:
    """Where the hub's cache keeps the files that a snapshot links to; None for a folder that is no snapshot."""
    return home.parent.parent / "blobs" if home.parent.name == "snapshots" else None


def text_in(path: Path) -> str:
    """The text of a file; raises DataError naming it."""
    try:
        return read_text(path)
    except RunError as error:
        raise DataError(str(error)) from None


def mapping_in(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; raises DataError naming it for what is none, or could not be written again."""
    try:
        data = read_json(path)
    except RunError as error:
        raise DataError(str(error)) from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected a mapping")
    _check(path, data)
    return data


def without_code(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` without what names code, on any level; nor the class of a tokenizer, which may be in that code."""
    dropped = (*CODE, "tokenizer_class") if any(key in data for key in CODE) else ()
    return {
        key: without_code(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if key not in dropped
    }


def _check(path: Path, data: Any) -> None:
    """Raise DataError for what is nested too deeply, and for text that is no Unicode."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise DataError(f"{path}: mappings and lists are nested more than {DEPTH} deep")
        keys = [key for part in level if isinstance(part, dict) for key in part]
        below = [entry for part in level for entry in (part.values() if isinstance(part, dict) else part)]
        for text in (text for text in [*keys, *below] if isinstance(text, str)):
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise DataError(f"{path}: {text!r:.60} holds half of a character (a lone surrogate)")
        level = [part for part in below if isinstance(part, (dict, list))]
