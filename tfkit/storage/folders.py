"""Folders are written once: a new folder takes a name whole, and the folder before it is NAME.old from then on.

Nothing is merged, and nothing is deleted but the folders that only tfkit wrote in: temporary ones, and an earlier
NAME.old, known by its lock. A process that is killed between the two renames leaves the folder as NAME.old;
`recover` renames it back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import warnings
from pathlib import Path

from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage.files import sync, temporary, temporary_for
from tfkit.storage.locks import LEFT, FolderBusy, FolderLock, let_lock_say, lock_says
from tfkit.storage.locks import NAME as LOCK

WRITTEN = "written"
REPLACED = "replaced"  # what a folder's lock says until the new one has its name
_TRIES = 100


class NewFolder:
    """A locked temporary folder next to `target`, to be filled and put in place. Raises RunError."""

    def __init__(self, target: Path) -> None:
        self.target = target
        for _ in range(_TRIES):
            self.path = temporary(target)
            try:
                self.path.mkdir()
                self.lock = FolderLock.take(self.path, WRITTEN)
                return
            except (FileExistsError, FolderBusy):
                continue  # another process took it for a leftover before it was locked
            except FileNotFoundError:
                if not target.parent.is_dir():
                    break
            except RunError:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                raise
            except OSError as error:
                raise RunError(f"{target}: cannot be written: {target.parent}: {error.strerror or error}") from None
        raise RunError(f"{target}: cannot be written: no folder can be made in {target.parent}")

    def put(self, replaces: bool) -> None:
        """Rename to the target. With `replaces` the folder there, locked by the caller, is renamed to NAME.old.

        Raises RunError; every folder has its previous name then.
        """
        with contextlib.ExitStack() as locks:
            try:
                for path in (*sorted(self.path.rglob("*")), self.path):
                    sync(path)
                earlier = self._take_name(replaces, locks)
            except OSError as error:
                raise RunError(f"{self.target}: cannot be replaced: {error.strerror or error}") from None
            self.lock.moved(self.target)
            with contextlib.suppress(OSError):
                sync(self.target.parent)
            if earlier.exists():
                _remove(earlier)

    def _take_name(self, replaces: bool, locks: contextlib.ExitStack) -> Path:
        """Rename, all or nothing. Return the place of an earlier NAME.old, which is to be removed."""
        old, earlier = old_name(self.target), temporary(self.target)
        with contextlib.ExitStack() as undo:
            if replaces and not _entries(self.target):
                (self.target / LOCK).unlink(missing_ok=True)
                self.target.rmdir()
                undo.callback(self.target.mkdir)
            elif replaces:
                if os.path.lexists(old):
                    _check_old(old)
                    locks.callback(FolderLock.take(old, None).release)
                    os.rename(old, earlier)
                    undo.callback(os.rename, earlier, old)
                undo.callback(let_lock_say, self.target, lock_says(self.target) or WRITTEN)
                let_lock_say(self.target, REPLACED)
                os.rename(self.target, old)
                undo.callback(os.rename, old, self.target)
            os.rename(self.path, self.target)
            undo.pop_all()
        if lock_says(old) == REPLACED:
            with contextlib.suppress(OSError):  # `_check_old` accepts both
                let_lock_say(old, LEFT)
        return earlier

    def close(self) -> None:
        """Release the lock, and remove the folder unless it was put in place."""
        if self.path.exists():
            _remove(self.path)
        self.lock.release()


def old_name(target: Path) -> Path:
    """Name of the folder that was replaced by `target`."""
    return target.with_name(f"{target.name}.old")


def check_replaceable(target: Path) -> None:
    """Raise RunError for a folder that cannot be renamed to NAME.old."""
    try:
        here = Path.cwd().resolve()
    except OSError:  # it was deleted
        here = None
    if here is not None and (here == target or target in here.parents):
        raise RunError(f"{target}: is the folder you are in, and would be replaced; go to another folder first")
    if os.path.ismount(target):
        raise RunError(f"{target}: is a mount point, which cannot be replaced; choose a folder in it")
    if _entries(target) and os.path.lexists(old_name(target)):
        _check_old(old_name(target))


def recover(target: Path) -> None:
    """Rename NAME.old back if a process was killed between two renames, and remove temporary folders of dead processes.

    Raises FolderBusy if the target is being replaced, RunError if it cannot be renamed back.
    """
    old = old_name(target)
    if lock_says(old) == REPLACED and _is_own(old) and not os.path.lexists(target):
        try:
            lock = FolderLock.take(old, None)
            try:
                os.rename(old, target)
                lock.moved(target)
                lock.say(WRITTEN)
            finally:
                lock.release()
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"{old}: was {target} until a process was killed, and cannot be renamed: {why}") from None
    for path in _leftovers(target):
        try:
            lock = FolderLock.take(path, None)
        except (RunError, OSError):
            continue  # in use, removed by another process, or read-only
        if lock_says(path) or not _entries(path):
            _remove(path)
        lock.release()


def _check_old(old: Path) -> None:
    """Raise RunError for a NAME.old that tfkit did not rename, or that others have used since."""
    if not _is_own(old) or lock_says(old) not in (LEFT, REPLACED):
        raise RunError(f"{old}: is there, and is not what tfkit itself moved aside; move it first")


def _entries(folder: Path) -> list[Path]:
    """Entries of a folder, without its lock."""
    return sorted(path for path in folder.iterdir() if path.name != LOCK)


def _leftovers(target: Path) -> list[Path]:
    """Temporary folders of this user made for `target`; none if the parent cannot be read."""
    try:
        return sorted(path for path in target.parent.iterdir() if temporary_for(path) == target.name and _is_own(path))
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    """True for a folder of this user that is no link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def _remove(path: Path) -> None:
    """Remove a folder, or warn. Its lock goes last: a killed process leaves a folder that `recover` removes."""
    try:
        for entry in _entries(path):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        (path / LOCK).unlink(missing_ok=True)
        path.rmdir()
    except OSError as error:
        warnings.warn(f"{path}: cannot be removed: {error.strerror or error}", TfkitWarning, stacklevel=4)
