"""Folders are replaced completely or not at all; files that tfkit did not write are never deleted.

A new folder is built beside the old one and takes its name in one step. What in the old one is not ours then moves
over, and only then does the old one go. Whoever is killed in between leaves a temporary folder beside the target, which
`recover` deals with at the next start: the target's name stands for the old folder or the new one at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.core.files import is_temporary, sync, temporary, temporary_for
from tfkit.core.locks import NAME as LOCK
from tfkit.core.locks import FolderBusy, FolderLock, is_in_use, let_lock_say, lock_says

Finder = Callable[[Path], Iterable[Path]]  # the files in a folder that are ours, and may be deleted
NEW = "new"  # what the lock of a folder says until it has the target's name for good
OLD = "old"  # what the lock of a folder says that another one has replaced
_TRIES = 100
_NO_SUCH_STEP = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


class NewFolder:
    """A locked folder beside `target`, to be filled and put in its place; raises RunError where none can be made."""

    def __init__(self, target: Path) -> None:
        self.target = target
        for _ in range(_TRIES):
            self.path = temporary(target)
            try:
                self.path.mkdir()
                self.lock = FolderLock.take(self.path, NEW)
                return
            except (FileExistsError, FolderBusy):
                continue  # somebody who cleans up took it for a leftover before it was locked
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

    def put(self, ours: Finder | None) -> list[str]:
        """Take the target's name, in the place of what is there; returns what is to be told.

        The files of the folder before that are not `ours` move over; None says that there is no folder. Raises
        RunError; the folder before is whole then.
        """
        try:
            for path in sorted(self.path.rglob("*")):
                sync(path)
            sync(self.path)
            before = self._take_name(ours is None)
        except OSError as error:
            raise RunError(f"{self.target}: cannot be replaced: {error.strerror or error}") from None
        self.lock.moved(self.target)
        with contextlib.suppress(OSError):
            sync(self.target.parent)
        return [] if before is None or ours is None else retire(before, self.target, ours)

    def _take_name(self, is_free: bool) -> Path | None:
        """Rename to the target; returns where the folder is now that was there. Raises OSError where it is not free."""
        if is_free or not os.path.lexists(self.target):
            os.rename(self.path, self.target)
            return None
        if exchange(self.path, self.target):
            return self.path
        before = temporary(self.target)
        os.rename(self.target, before)
        try:
            os.rename(self.path, self.target)
        except OSError:
            os.rename(before, self.target)
            raise
        return before

    def close(self) -> None:
        """Release the lock; a folder that was not put in place is removed."""
        if lock_says(self.path) == NEW:
            with contextlib.suppress(OSError):
                _remove_new(self.path)
        self.lock.release()


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot. Raises OSError."""
    if sys.platform not in ("linux", "darwin"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    one, two = os.fsencode(first), os.fsencode(second)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(-100, one, -100, two, 2)  # AT_FDCWD, RENAME_EXCHANGE
    elif hasattr(library, "renamex_np"):
        failed = library.renamex_np(one, two, 2)  # RENAME_SWAP
    else:
        return False
    number = ctypes.get_errno()
    if failed and number not in _NO_SUCH_STEP:
        raise OSError(number, os.strerror(number), str(second))
    return not failed


def check_replaceable(target: Path) -> None:
    """Raise RunError for a folder that cannot be replaced as a whole, with what can be done."""
    here = _working_folder()
    if here is not None and (here == target or target in here.parents):
        raise RunError(f"{target}: is the folder you are in, and would be replaced; go to another folder first")
    if os.path.ismount(target):
        raise RunError(f"{target}: is a mount point, which cannot be replaced; choose a folder in it")


def recover(target: Path, ours: Finder) -> list[str]:
    """Finish or undo what killed processes left beside `target`; returns what is to be told.

    Where a folder was moved aside and nothing took its place, it comes back. What cannot be cleaned up stays. Raises
    FolderBusy where the folder is being replaced just now.
    """
    told: list[str] = []
    for path in _leftovers(target):
        is_gone = not os.path.lexists(target)
        content = lock_says(path)
        try:
            lock = FolderLock.take(path, None)
        except FolderBusy:
            if content != NEW and is_gone:
                raise  # it was moved aside, and what takes its place comes just now
            continue
        except (RunError, OSError):
            continue  # another one cleans up, or it cannot be written
        try:
            if content == NEW or not _entries(path):
                _remove_new(path)
            elif content == OLD or lock_says(target) == NEW:
                told += retire(path, target, ours)
            elif is_gone:
                os.rename(path, target)
            else:
                told.append(f"{path}: is what {target} was before a process was killed that wanted to replace it")
        except OSError as error:
            told.append(f"{path}: was left by a process that was killed, and cannot be removed: {error.strerror}")
        finally:
            lock.release()
    return told


def retire(before: Path, target: Path, ours: Finder) -> list[str]:
    """Move what is not `ours` from a folder that was replaced to the one in its place, and remove the rest.

    Returns what is to be told: what got another name, because the folder has that one now, and what had to stay. Where
    the one in its place is gone, what is not ours stays.
    """
    told: list[str] = []
    with contextlib.suppress(OSError):  # a full disk is no reason to keep what takes room on it
        let_lock_say(before, OLD)  # from here on it is not whole
    try:
        known = sorted(ours(before))
        tops = {path.relative_to(before).parts[0] for path in known}
        if target.is_dir():
            for entry in _entries(before):
                if entry.name not in tops:
                    told += _move(entry, target)
        for path in known:
            path.unlink(missing_ok=True)
        for entry in _entries(before):  # the folders of ours; they stay where something of the user's is in them
            _remove_empty(entry)
        if target.is_dir():
            for entry in _entries(before):
                told += _move(entry, target)
        if _entries(before):
            return [*told, f"{before}: holds files of yours, which were in {target}"]
        (before / LOCK).unlink(missing_ok=True)
        before.rmdir()
    except OSError as error:
        told.append(f"{before}: holds what {target} held before, and cannot be removed: {error.strerror}")
    return told


def named(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """The files in a folder that have one of these names, and those that a killed process left of writing one.

    A link to a folder is none.
    """
    wanted = set(names)
    for path in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        if wanted.intersection((path.name, temporary_for(path))) and (path.is_symlink() or not path.is_dir()):
            yield path


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed processes left of writing files with these names; raises RunError."""
    try:
        for path in named(folder, names):
            if is_temporary(path) and not is_in_use(path):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be cleaned up: {error.filename}: {error.strerror}") from None


def _entries(folder: Path) -> list[Path]:
    """What is in a folder besides its lock."""
    return sorted(path for path in folder.iterdir() if path.name != LOCK)


def _leftovers(target: Path) -> list[Path]:
    """The temporary folders of this user that were made for `target`; none where nobody may look for them."""
    try:
        return sorted(path for path in target.parent.iterdir() if temporary_for(path) == target.name and _is_own(path))
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    """Whether that is a folder of this user, and no link."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())


def _move(entry: Path, folder: Path) -> list[str]:
    """Move into `folder`, under a name that is free there; returns what is to be told."""
    goal, number = folder / entry.name, 1
    if os.path.lexists(goal):
        _remove_empty(entry)  # one of ours that a killed process had emptied
        if not os.path.lexists(entry):
            return []
    while os.path.lexists(goal):
        goal = folder / (f"{entry.name}.old" if number == 1 else f"{entry.name}.old-{number}")
        number += 1
    os.rename(entry, goal)
    return [] if goal.name == entry.name else [f"{folder / entry.name}: held files of yours, which are in {goal} now"]


def _remove_empty(path: Path) -> None:
    """Remove a folder where nothing but empty folders is in it."""
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            _remove_empty(entry)
        if not any(path.iterdir()):
            path.rmdir()


def _remove_new(path: Path) -> None:
    """Remove a folder that only we wrote in; its lock goes last, since it says so."""
    for entry in _entries(path):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    (path / LOCK).unlink(missing_ok=True)
    path.rmdir()


def _working_folder() -> Path | None:
    try:
        return Path.cwd().resolve()
    except OSError:  # it was deleted
        return None
