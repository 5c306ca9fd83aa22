"""The folder of a run, claimed before anything is prepared: nobody else trains in it until the claim is given up."""

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
from tfkit.storage.folders import NewFolder, check_replaceable, recover
from tfkit.storage.locks import FolderBusy, FolderLock
from tfkit.training.contents import check_regular, clean_up
from tfkit.training.folder import RunFolder
from tfkit.training.start import check_ours, check_use

RUNS = Path("runs")
TRAINED = "trained"  # what the lock of a run's folder says
TRIES = 100
_training = threading.Lock()


class Claim:
    """A run's folder that nobody else trains in until the `with` block ends.

    A folder that was made for it goes again where nothing was written into it.
    """

    def __init__(self, folder: RunFolder, resume: bool = False, force: bool = False) -> None:
        """Take the folder; raises RunError for one that may not be used, with nothing in it changed."""
        self.folder, self.resume = folder, resume
        self.place = Path(os.path.realpath(folder.path))  # the folder may be a link, which stays
        self._made: list[Path] = []
        try:
            recover(self.place)
            check_ours(folder)
            self._lock = self._locked()
        except OSError as error:
            raise RunError(f"{folder}: cannot be read: {error.strerror or error}") from None
        try:
            check_ours(folder)  # others had it until now
            self.replaces = not folder.is_free and not resume
            if not folder.is_free:
                check_use(folder, resume, force)
            if self.replaces:
                check_replaceable(self.place)
            else:
                check_regular(self.place)
                clean_up(self.place)
        except BaseException:
            self._give_up()
            raise

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_up()

    @contextlib.contextmanager
    def beginning(self) -> Iterator[RunFolder]:
        """The folder for the first files of a new run. A run that it replaces is NAME.old when the block has ended."""
        if not self.replaces:
            yield self.folder
            return
        new = NewFolder(self.place)
        try:
            yield RunFolder(new.path)
            new.put(replaces=True)
        except OSError as error:
            new.close()
            raise RunError(f"{self.folder}: cannot be written: {error.strerror or error}") from None
        except BaseException:
            new.close()
            raise
        self._lock.release()
        self._lock = new.lock
        with contextlib.suppress(OSError):  # it is held, whatever it says
            self._lock.say(TRAINED)

    def _locked(self) -> FolderLock:
        """The lock of the folder, which is made where there is none."""
        for _ in range(TRIES):
            try:
                for path in reversed([self.place, *self.place.parents]):
                    if not path.exists():
                        path.mkdir()
                        self._made.insert(0, path)
                return FolderLock.take(self.folder.path, TRAINED)
            except (FileExistsError, FileNotFoundError):
                continue  # somebody made it, or gave it up, just now
            except OSError as error:
                self._remove_made()
                raise RunError(f"{self.folder}: cannot be made: {error.strerror or error}") from None
            except RunError:
                self._remove_made()
                raise
        raise RunError(f"{self.folder}: cannot be made: it is a link to itself, or others remove it again and again")

    def _give_up(self) -> None:
        self._lock.release()
        self._remove_made()

    def _remove_made(self) -> None:
        for path in self._made:
            with contextlib.suppress(OSError):  # something was written
                path.rmdir()


def claim_folder(name: str, out: str | Path | None, resume: bool, force: bool) -> Claim:
    """The folder to train in, by default the next free one of that name. Raises as Claim does, and UsageError."""
    if resume and force:
        raise UsageError("--resume goes on with what is there and --force replaces it; give one of the two")
    if out is not None:
        if not str(out).strip() or "\0" in str(out):
            raise UsageError(f"--out: {str(out)!r} is no name of a folder")
        return Claim(RunFolder(Path(out)), resume, force)
    if resume:
        return Claim(_folder(name, max(1, *_taken(name))), resume=True)
    for number in itertools.count(max(_taken(name)) + 1):
        folder = _folder(name, number)
        try:
            return Claim(folder)
        except RunError as error:
            if folder.is_free and not isinstance(error, FolderBusy):
                raise  # else another process was faster
    raise AssertionError


@contextlib.contextmanager
def one_training() -> Iterator[None]:
    """Raise UsageError where another thread of this process trains: both would draw from the same random numbers."""
    if not _training.acquire(blocking=False):
        raise UsageError(
            "another thread of this process is training, and random numbers belong to the whole process; "
            "train one after the other, or in processes of their own"
        )
    try:
        yield
    finally:
        _training.release()


def _taken(name: str) -> list[int]:
    """The numbers of the folders in runs/ that have that name and are not free, and 0."""
    numbers = [0]
    for path in RUNS.glob(f"{glob.escape(name)}*") if RUNS.is_dir() else ():
        found = re.fullmatch(re.escape(name) + r"(?:-(\d+))?", path.name)
        if found is not None and not RunFolder(path).is_free:
            numbers.append(int(found[1] or 1))
    return numbers


def _folder(name: str, number: int) -> RunFolder:
    return RunFolder(RUNS / (name if number == 1 else f"{name}-{number}"))


def _renew() -> None:
    """A forked child trains on its own, even where its parent did when it was forked."""
    global _training
    _training = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
