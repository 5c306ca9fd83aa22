"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfkit.core.errors import RunError


@contextlib.contextmanager
def whole_folder(target: Path, replaced: Iterable[str] = ()) -> Iterator[Path]:
    """A new folder beside `target`; what was written in it goes there when the block ends well, else it is gone.

    Of what stood in `target`, the names in `replaced` are removed first, so that old and new never mix. Raises
    RunError where the disk says no.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        if target.exists():
            _move_into(beside, target, replaced)
        else:
            os.replace(beside, target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_free(target: Path, marks: Iterable[str], force: bool, what: str) -> None:
    """Raise RunError unless `target` can be written: it is free, or it is forced and holds `what`, known by `marks`."""
    if target.exists() and not target.is_dir():
        raise RunError(f"{target}: is a file; a folder is needed")
    if not target.exists() or not any(target.iterdir()):
        return
    if not all((target / mark).is_file() for mark in marks):
        raise RunError(f"{target}: is not empty and holds no {what}; choose another folder")
    if not force:
        raise RunError(f"{target}: holds a {what}; --force replaces it, or choose another folder")


def _move_into(source: Path, target: Path, replaced: Iterable[str]) -> None:
    for name in replaced:
        path = target / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in sorted(source.iterdir()):
        os.replace(path, target / path.name)
