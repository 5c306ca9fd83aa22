"""The folder that a save, an import or an export writes: it appears whole, or what was there stays as it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError, UsageError
from tfkit.storage.folders import NewFolder, check_replaceable, recover
from tfkit.storage.locks import NAME as LOCK
from tfkit.storage.locks import FolderLock


@dataclass(frozen=True)
class Target:
    """A folder to write. One that is there is replaced if that is `forced`, and it is `what`, known by `marks`."""

    path: Path
    what: str
    marks: tuple[str, ...]
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
            if any(path.name != LOCK for path in self.path.iterdir()):
                self._check_content()
            check_replaceable(self.place)

    def _check_content(self) -> None:
        if not all((self.path / mark).is_file() for mark in self.marks):
            raise RunError(f"{self.path}: is not empty and holds no {self.what}; choose another folder")
        if not self.forced:
            raise RunError(f"{self.path}: holds a {self.what}; --force replaces it, or choose another folder")


def target_folder(path: str | Path, what: str, marks: Iterable[str], force: bool) -> Target:
    """A folder to write, after cleaning up what killed processes left next to it. Raises RunError if it is refused."""
    if not str(path).strip() or "\0" in str(path):
        raise UsageError(f"{str(path)!r} is no name of a folder")
    target = Target(Path(path), what, tuple(marks), force)
    recover(target.place)
    target.check()
    return target


@contextlib.contextmanager
def whole_folder(target: Target) -> Iterator[Path]:
    """A new folder to write in, renamed to the target if the block ends well and removed otherwise.

    Raises RunError for what the system refuses; the target is unchanged then.
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
        new.put(replaces=is_there)
