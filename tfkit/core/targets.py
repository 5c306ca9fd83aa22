"""The folder that a save, an import or an export writes: it appears whole, or what was there stays as it was."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError, TfkitWarning, UsageError
from tfkit.core.folders import Finder, NewFolder, check_replaceable, recover
from tfkit.core.locks import NAME as LOCK
from tfkit.core.locks import FolderLock


@dataclass(frozen=True)
class Target:
    """Where to write. What is there may be replaced where that is `forced`, and where it is `what`, known by `marks`.

    `ours` finds the files in it that are replaced; all others stay.
    """

    path: Path
    what: str
    marks: tuple[str, ...]
    ours: Finder
    forced: bool

    @property
    def place(self) -> Path:
        """The folder itself where the path is a link to it."""
        return Path(os.path.realpath(self.path))

    def check(self) -> None:
        """Raise RunError unless the folder can be written."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: is a file; a folder is needed")
        if self.path.exists():
            check_replaceable(self.place)
        if not self.path.exists() or all(path.name == LOCK for path in self.path.iterdir()):
            return
        if not all((self.path / mark).is_file() for mark in self.marks):
            raise RunError(f"{self.path}: is not empty and holds no {self.what}; choose another folder")
        if not self.forced:
            raise RunError(f"{self.path}: holds a {self.what}; --force replaces it, or choose another folder")


def target_folder(path: str | Path, what: str, marks: Iterable[str], ours: Finder, force: bool) -> Target:
    """A folder to write, in which what killed processes left is cleaned up. Raises RunError where it is not to be."""
    if not str(path).strip() or "\0" in str(path):
        raise UsageError(f"{str(path)!r} is no name of a folder")
    target = Target(Path(path), what, tuple(marks), ours, force)
    _tell(recover(target.place, ours))
    target.check()
    return target


@contextlib.contextmanager
def whole_folder(target: Target) -> Iterator[Path]:
    """A new folder; what is written in it takes the place of the target when the block ends well, else it is gone.

    Raises RunError where the disk or the system says no; the target is as it was then.
    """
    with contextlib.ExitStack() as stack:
        is_there = target.path.exists()
        if is_there:
            stack.callback(FolderLock.take(target.path, "written").release)
            target.check()  # others had it until now
        try:
            target.place.parent.mkdir(parents=True, exist_ok=True)
            new = NewFolder(target.place)
            stack.callback(new.close)
            yield new.path
        except OSError as error:
            raise RunError(f"{target.path}: cannot be written: {error.strerror or error}") from None
        _tell(new.put(target.ours if is_there else None))


def _tell(messages: Iterable[str]) -> None:
    for message in messages:
        warnings.warn(message, TfkitWarning, stacklevel=3)
