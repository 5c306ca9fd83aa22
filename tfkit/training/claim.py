"""Exclusive use of a run folder, from the start of preparation until training ends."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from tfkit.core.errors import RunError, UsageError
from tfkit.storage.checksums import SUMS
from tfkit.storage.files import remove
from tfkit.storage.folders import check_replaceable, new_folder, recover
from tfkit.storage.locks import FolderBusy, FolderLock
from tfkit.training.contents import clean_up
from tfkit.training.folder import RunFolder
from tfkit.training.kept import kept_files
from tfkit.training.record import record_run
from tfkit.training.start import check_free_or_run, check_use

RUNS = Path("runs")
TRAINED = "trained"  # purpose, as recorded in the lock of a run folder
TRIES = 100
_training: dict[int, threading.Lock] = {}  # by process, because a forked child may train too


class Claim:
    """Exclusive use of a run folder within a `with` block.

    At the end, the manifest of the run is written if its files were changed, and a new folder is removed if empty.
    """

    def __init__(self, folder: RunFolder, resume: bool = False, force: bool = False) -> None:
        """Lock the folder. Raise RunError, without changing anything, if it may not be used."""
        self.folder, self.resume = folder, resume
        self.place = Path(os.path.realpath(folder.path))  # the folder may be a symbolic link, which must survive
        self._made: list[Path] = []
        self._changes = False
        try:
            recover(self.place)
            check_free_or_run(folder)
            self._lock = self._locked()
        except OSError as error:
            raise RunError(f"{folder}: cannot be read: {error.strerror or error}") from None
        try:
            # checked again, because another process may have used the folder before the lock was acquired
            check_free_or_run(folder)
            self.replaces = not folder.is_free and not resume
            if not folder.is_free:
                check_use(folder, resume, force)
            if self.replaces:
                check_replaceable(self.place)
            else:
                clean_up(self.place)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        if self._changes:
            with contextlib.suppress(RunError):  # if the disk is full, the block's own error matters more
                record_run(self.folder, kept_files(self.folder.path))
        self._lock.release()
        self._remove_made()

    def changing(self) -> None:
        """Remove the manifest, because the files of the run change until training ends."""
        self._changes = True
        remove(self.folder / SUMS)

    @contextlib.contextmanager
    def beginning(self) -> Iterator[RunFolder]:
        """Yield the folder to write a new run to. A replaced run is renamed to NAME.old when the block ends."""
        if not self.replaces:
            self._changes = True
            yield self.folder
            return
        locks: list[FolderLock] = []
        with new_folder(self.place, replaces=True, keep=locks) as path:
            yield RunFolder(path)
        self._changes = True
        self._lock.release()
        self._lock = locks[0]
        with contextlib.suppress(OSError):  # the lock holds even if its text cannot be written
            self._lock.set_purpose(TRAINED)

    def _locked(self) -> FolderLock:
        """Lock the folder, creating it if missing."""
        for _ in range(TRIES):
            try:
                for path in reversed([self.place, *self.place.parents]):
                    if not path.exists():
                        path.mkdir()
                        self._made.insert(0, path)
                return FolderLock.take(self.folder.path, TRAINED)
            except (FileExistsError, FileNotFoundError):
                continue  # another process has just created or removed it
            except (OSError, RunError) as error:
                self._remove_made()
                if isinstance(error, RunError):
                    raise
                raise RunError(f"{self.folder}: cannot be created: {error.strerror or error}") from None
        raise RunError(f"{self.folder}: cannot be created: it is a link to itself, or other processes keep removing it")

    def _remove_made(self) -> None:
        for path in self._made:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


def claim_folder(name: str, out: str | Path | None, resume: bool, force: bool) -> Claim:
    """Claim `out`, or the next free folder for `name` in runs/. Raise UsageError for invalid options."""
    if resume and force:
        raise UsageError("--resume continues a run and --force replaces it; use one of the two")
    if out is not None:
        if not str(out).strip() or "\0" in str(out):
            raise UsageError(f"--out: {str(out)!r} is not a valid folder name")
        return Claim(RunFolder(Path(out)), resume, force)
    if resume:
        return Claim(_folder(name, max(1, *_taken(name))), resume=True)
    for number in itertools.count(max(_taken(name)) + 1):
        folder = _folder(name, number)
        try:
            return Claim(folder)
        except RunError as error:
            if folder.is_free and not isinstance(error, FolderBusy):
                raise  # otherwise another process took the folder first: try the next number
    raise AssertionError


@contextlib.contextmanager
def one_training() -> Iterator[None]:
    """Raise UsageError if another thread of this process is training, since threads share the RNGs."""
    lock = _training.setdefault(os.getpid(), threading.Lock())
    if not lock.acquire(blocking=False):
        raise UsageError(
            "another thread of this process is training, and all threads share the random number generators; "
            "train the runs one after the other, or in separate processes"
        )
    try:
        yield
    finally:
        lock.release()


def _taken(name: str) -> list[int]:
    """Return the suffixes of occupied folders in runs/ with this name, and 0."""
    numbers = [0]
    for path in RUNS.glob(f"{glob.escape(name)}*") if RUNS.is_dir() else ():
        found = re.fullmatch(re.escape(name) + r"(?:-(\d+))?", path.name)
        if found is not None and not RunFolder(path).is_free:
            numbers.append(int(found[1] or 1))
    return numbers


def _folder(name: str, number: int) -> RunFolder:
    return RunFolder(RUNS / (name if number == 1 else f"{name}-{number}"))
