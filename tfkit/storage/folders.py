"""Atomic replacement of folders, in which the previous one becomes NAME.old, and output folders of commands.

Folders are never merged. Only temporary folders, and an earlier NAME.old that is identified by its lock, are deleted.
If a process is killed between the two renames, `recover` renames NAME.old back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError, TfkitWarning, UsageError
from tfkit.storage.files import LEFT, FolderBusy, FolderLock, lock_purpose, mark_lock, sync, temporary, temporary_for
from tfkit.storage.files import NAME as LOCK

WRITTEN = "written"
REPLACED = "replaced"  # purpose in the lock of the old folder until the new folder is renamed to the target
_TRIES = 100


@contextlib.contextmanager
def new_folder(target: Path, replaces: bool, keep: list[FolderLock] | None = None) -> Iterator[Path]:
    """Yield a locked folder next to `target` that is renamed to it if the block succeeds, and removed if it fails.

    With `replaces`, the existing folder, which the caller has locked, becomes NAME.old. The lock of the new folder is
    released at the end, or appended to `keep`. Raise RunError for system errors; all names are restored then.
    """
    path, lock = _made(target)
    try:
        try:
            yield path
        except OSError as error:
            raise RunError(f"{target}: cannot be written: {error.strerror or error}") from None
        with contextlib.ExitStack() as locks:
            try:
                for entry in (*sorted(path.rglob("*")), path):
                    sync(entry)
                earlier = _renamed(path, target, replaces, locks)
            except OSError as error:
                raise RunError(f"{target}: cannot be replaced: {error.strerror or error}") from None
            lock.moved(target)
            with contextlib.suppress(OSError):
                sync(target.parent)
            if earlier.exists():
                _remove(earlier)
        if keep is not None:
            keep.append(lock)
    finally:
        if path.exists():
            _remove(path)
        if not keep:
            lock.release()


def _made(target: Path) -> tuple[Path, FolderLock]:
    """Create and lock a temporary folder. Raise RunError if that fails."""
    for _ in range(_TRIES):
        path = temporary(target)
        try:
            path.mkdir()
            return path, FolderLock.take(path, WRITTEN)
        except (FolderBusy, FileNotFoundError):  # another process has locked or removed it as a leftover
            if not target.parent.is_dir():
                break
        except OSError as error:
            raise RunError(f"{target}: cannot be written: {target.parent}: {error.strerror or error}") from None
    raise RunError(f"{target}: cannot be written: cannot create a folder in {target.parent}")


def _renamed(path: Path, target: Path, replaces: bool, locks: contextlib.ExitStack) -> Path:
    """Do all renames or none. Return the path of the earlier NAME.old, which is to be removed."""
    old, earlier = old_name(target), temporary(target)
    with contextlib.ExitStack() as undo:
        if replaces and not _entries(target):
            (target / LOCK).unlink(missing_ok=True)
            target.rmdir()
            undo.callback(target.mkdir)
        elif replaces:
            if os.path.lexists(old):
                _check_old(old)
                locks.callback(FolderLock.take(old, None).release)
                os.rename(old, earlier)
                undo.callback(os.rename, earlier, old)
            undo.callback(mark_lock, target, lock_purpose(target) or WRITTEN)
            mark_lock(target, REPLACED)
            os.rename(target, old)
            undo.callback(os.rename, old, target)
        os.rename(path, target)
        undo.pop_all()
    if lock_purpose(old) == REPLACED:
        with contextlib.suppress(OSError):  # either purpose is accepted by `_check_old`
            mark_lock(old, LEFT)
    return earlier


def old_name(target: Path) -> Path:
    """Return the path to which a replaced folder is renamed."""
    return target.with_name(f"{target.name}.old")


def check_replaceable(target: Path) -> None:
    """Raise RunError if a folder cannot be renamed to NAME.old."""
    with contextlib.suppress(OSError):  # the current folder was deleted
        here = Path.cwd().resolve()
        if target in (here, *here.parents):
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
    with contextlib.suppress(OSError):  # the parent folder cannot be read
        for path in sorted(target.parent.iterdir()):
            if temporary_for(path) == target.name and _is_own(path):
                _remove_left(path)


def _remove_left(path: Path) -> None:
    """Remove a temporary folder unless a living process uses it."""
    try:
        lock = FolderLock.take(path, None)
    except (RunError, OSError):
        return  # in use, removed by another process, or read-only
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
