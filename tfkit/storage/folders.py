"""Atomic replacement of folders: a complete new folder is renamed into place, and the previous one becomes NAME.old.

Folders are never merged. Only temporary folders, and an earlier NAME.old that is identified by its lock, are deleted.
If a process is killed between the two renames, `recover` renames NAME.old back.
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
from tfkit.storage.locks import LEFT, FolderBusy, FolderLock, lock_purpose, mark_lock
from tfkit.storage.locks import NAME as LOCK

WRITTEN = "written"
REPLACED = "replaced"  # purpose in the lock of the old folder until the new folder is renamed to the target
_TRIES = 100


class NewFolder:
    """Locked temporary folder next to `target`, to be filled and renamed. Raise RunError if it cannot be created."""

    def __init__(self, target: Path) -> None:
        self.target = target
        for _ in range(_TRIES):
            self.path = temporary(target)
            try:
                self.path.mkdir()
                self.lock = FolderLock.take(self.path, WRITTEN)
                return
            except (FileExistsError, FolderBusy):
                continue  # another process removed or locked it as a leftover
            except FileNotFoundError:
                if not target.parent.is_dir():
                    break
            except RunError:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                raise
            except OSError as error:
                raise RunError(f"{target}: cannot be written: {target.parent}: {error.strerror or error}") from None
        raise RunError(f"{target}: cannot be written: cannot create a folder in {target.parent}")

    def put(self, replaces: bool) -> None:
        """Rename the folder to the target. With `replaces`, the existing folder becomes NAME.old; the caller locks it.

        On failure, restore all names and raise RunError.
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
        """Do all renames or none. Return the path of the earlier NAME.old, which is to be removed."""
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
                undo.callback(mark_lock, self.target, lock_purpose(self.target) or WRITTEN)
                mark_lock(self.target, REPLACED)
                os.rename(self.target, old)
                undo.callback(os.rename, old, self.target)
            os.rename(self.path, self.target)
            undo.pop_all()
        if lock_purpose(old) == REPLACED:
            with contextlib.suppress(OSError):  # either purpose is accepted by `_check_old`
                mark_lock(old, LEFT)
        return earlier

    def close(self) -> None:
        """Release the lock. Remove the folder unless it was renamed to the target."""
        if self.path.exists():
            _remove(self.path)
        self.lock.release()


def old_name(target: Path) -> Path:
    """Return the path to which a replaced folder is renamed."""
    return target.with_name(f"{target.name}.old")


def check_replaceable(target: Path) -> None:
    """Raise RunError if a folder cannot be renamed to NAME.old."""
    try:
        here = Path.cwd().resolve()
    except OSError:  # the current folder was deleted
        here = None
    if here is not None and (here == target or target in here.parents):
        raise RunError(f"{target}: is the current folder, which would be replaced; change to another folder first")
    if os.path.ismount(target):
        raise RunError(f"{target}: is a mount point, which cannot be replaced; choose a folder inside it")
    if _entries(target) and os.path.lexists(old_name(target)):
        _check_old(old_name(target))


def recover(target: Path) -> None:
    """Clean up after a crash: rename NAME.old back if there is no new folder, and remove temporary folders.

    Raise FolderBusy if the target is being replaced, RunError if NAME.old cannot be renamed back.
    """
    old = old_name(target)
    if lock_purpose(old) == REPLACED and _is_own(old) and not os.path.lexists(target):
        try:
            lock = FolderLock.take(old, None)
            try:
                os.rename(old, target)
                lock.moved(target)
                lock.set_purpose(WRITTEN)
            finally:
                lock.release()
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"{old}: cannot be renamed back to {target} after a process was killed: {why}") from None
    for path in _leftovers(target):
        try:
            lock = FolderLock.take(path, None)
        except (RunError, OSError):
            continue  # in use, removed by another process, or read-only
        if lock_purpose(path) or not _entries(path):
            _remove(path)
        lock.release()


def _check_old(old: Path) -> None:
    """Raise RunError if NAME.old was not created by tfkit, or has been used since."""
    if not _is_own(old) or lock_purpose(old) not in (LEFT, REPLACED):
        raise RunError(f"{old}: already exists, and was not moved aside by tfkit; move it away first")


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder except its lock."""
    return sorted(path for path in folder.iterdir() if path.name != LOCK)


def _leftovers(target: Path) -> list[Path]:
    """Return this user's temporary folders for `target`, or [] if the parent folder cannot be read."""
    try:
        return sorted(path for path in target.parent.iterdir() if temporary_for(path) == target.name and _is_own(path))
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    """True if a path is a folder owned by this user, and not a link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def _remove(path: Path) -> None:
    """Remove a folder, or warn. The lock is removed last, so that `recover` can continue after a crash."""
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
