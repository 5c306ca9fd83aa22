"""Output folders of a save, an import or an export, which are replaced atomically or left unchanged."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError, UsageError
from tfkit.storage.folders import check_replaceable, new_folder, recover
from tfkit.storage.locks import NAME as LOCK
from tfkit.storage.locks import FolderLock


@dataclass(frozen=True)
class Target:
    """Folder to write. If `forced`, an existing folder is replaced if the files `marks` identify it as a `what`."""

    path: Path
    what: str
    marks: tuple[str, ...]
    forced: bool

    @property
    def place(self) -> Path:
        """Path of the folder with links resolved."""
        return Path(os.path.realpath(self.path))

    def check(self) -> None:
        """Raise RunError if the folder must not be written."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunError(f"{self.path}: is a file; choose a folder")
        if any(path.name != LOCK for path in self.path.iterdir()):
            if not all((self.path / mark).is_file() for mark in self.marks):
                raise RunError(f"{self.path}: not empty and not a {self.what}; choose another folder")
            if not self.forced:
                raise RunError(f"{self.path}: contains a {self.what}; --force replaces it, or choose another folder")
        check_replaceable(self.place)


def target_folder(path: str | Path, what: str, marks: Iterable[str], force: bool) -> Target:
    """Remove leftovers of killed processes, and check that the folder may be written. Raise RunError if not."""
    if not str(path).strip() or "\0" in str(path):
        raise UsageError(f"{str(path)!r} is not a valid folder name")
    target = Target(Path(path), what, tuple(marks), force)
    recover(target.place)
    target.check()
    return target


@contextlib.contextmanager
def whole_folder(target: Target) -> Iterator[Path]:
    """Yield a new folder that is renamed to the target if the block succeeds, and removed if it fails.

    On system errors, leave the target unchanged and raise RunError.
    """
    with contextlib.ExitStack() as stack:
        exists = target.path.exists()
        if exists:
            stack.callback(FolderLock.take(target.path, "written").release)
            # checked again, because another process may have used the folder before the lock was acquired
            target.check()
        try:
            target.place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{target.path}: cannot be written: {error.strerror or error}") from None
        yield stack.enter_context(new_folder(target.place, replaces=exists))
