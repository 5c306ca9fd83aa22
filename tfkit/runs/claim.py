"""Exclusive use of a run folder, and checks before a run is resumed or replaced."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tfkit.core.errors import RunError, UsageError
from tfkit.core.output import counted
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.sections import Data
from tfkit.runs.checkpoint import FILES, UNFINISHED, Checkpoints, read_progress
from tfkit.runs.folder import CARD, CHECKPOINTS, ENVIRONMENT, EVALUATION, OURS, QUANTIZED, RESOLVED, WEIGHTS, RunFolder
from tfkit.runs.kept import kept_files
from tfkit.runs.record import DATA, file_hashes, moved, record_run
from tfkit.storage.checksums import SUMS
from tfkit.storage.files import FolderBusy, FolderLock, read_yaml, remove, remove_leftovers
from tfkit.storage.folders import check_replaceable, new_folder, recover

_CHECKPOINT = re.compile(rf"step-\d{{8,}}(\.damaged(-\d+)?)?|{UNFINISHED.pattern}")  # complete, damaged or unfinished


def clean_up(folder: Path) -> None:
    """Remove unfinished files of killed processes.

    Raise RunError if that fails, or if an entry that tfkit writes is a link or of the wrong kind.
    """
    _check(folder / CHECKPOINTS, is_folder=True)
    places: dict[Path, tuple[str, ...]] = {folder: (*OURS, CARD)}
    for path in sorted((folder / CHECKPOINTS).iterdir()) if (folder / CHECKPOINTS).is_dir() else ():
        if _CHECKPOINT.fullmatch(path.name):
            _check(path, is_folder=True)
            places[path] = FILES
    for place, names in places.items():
        for name in names:
            if name != CARD:
                _check(place / name, is_folder=False)
    for place, names in places.items():
        remove_leftovers(place, names)


def in_checkpoints(folder: Path) -> list[str]:
    """List the entries of the checkpoints folder, without unfinished checkpoints."""
    place = folder / CHECKPOINTS
    names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
    return [name for name in names if UNFINISHED.fullmatch(name) is None]


def _check(path: Path, is_folder: bool) -> None:
    if path.is_symlink():
        raise RunError(f"{path}: is a link, so tfkit would write outside the run; replace it with its target")
    if path.exists() and not (path.is_dir() if is_folder else path.is_file()):
        raise RunError(f"{path}: not a {'folder' if is_folder else 'regular file'}, as required here; move it away")


# keys that a resumed run may not change; steps and intervals may change
GROUPED = ("train.groups", "train.layer_decay")  # define the optimizer's parameter groups
TEACHER = "train.teacher"
FROZEN = ("train.freeze", "train.adapter")
FIXED = ("model", "data", "objective", "train.seed", "train.optimizer.type", *FROZEN, TEACHER, *GROUPED)
ABSENT = object()
OFF: tuple[object, ...] = (False, "none", [])


def check_free_or_run(folder: RunFolder) -> None:
    """Raise RunError if the path is occupied by something other than a run."""
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError(f"{folder}: is a file; choose another --out")
    if folder.is_free or folder.holds_run:
        return
    if (folder / ENVIRONMENT).is_file() and (folder / RESOLVED).is_file():
        try:
            _ = folder.known
        except RunError as error:
            raise RunError(f"{error}; this run cannot be resumed without it. Choose another --out") from None
    raise RunError(f"{folder}: not empty and not a tfkit run; choose another --out")


def check_use(folder: RunFolder, resume: bool, force: bool) -> None:
    """Raise RunError if the existing run can be neither resumed nor replaced with these options."""
    if resume and folder.holds_import:
        hint = f"to start from its weights, use train.init_from: {folder}"
        raise RunError(f"{folder}: contains an imported model, which has no training to resume; {hint}")
    if resume and folder.holds_quantized:
        what = f"contains {folder.known[QUANTIZED]} weights, which cannot be trained"
        raise RunError(f"{folder}: {what}; resume the run from which they were quantized, or choose another --out")
    if not (resume or force):
        raise RunError(f"{folder}: {_describe_contents(folder)}--force replaces it, or choose another --out")


def check_nothing_is_lost(folder: RunFolder) -> None:
    """Raise RunError if training cannot resume and a restart would lose results."""
    if results := _worth_keeping(folder):
        if folder.holds_run and CHECKPOINTS in folder.removed:
            text = "a study has deleted its checkpoints (study.keep), so it cannot be resumed"
            raise RunError(f"{folder}: {text}; --force replaces the run, or choose another --out")
        hints = [f"if {path.name} contains its checkpoints, rename it to {CHECKPOINTS}; " for path in _renamed(folder)]
        raise RunError(
            f"{folder}: contains {results}, but no checkpoint to resume from, and --resume deletes nothing; "
            f"{''.join(hints)}--force replaces the run, or choose another --out"
        )


def check_same(folder: RunFolder, resolved: str, data: Data | None = None) -> None:
    """Raise RunError if the recipe differs from the run's in a key that must not change.

    A run without resolved.yaml is not checked. With the recipe's `data`, files that were only moved count as unchanged.
    """
    old, new = _both(folder, resolved, data)
    found = [line for key in FIXED for line in differences(_fixed(old, key), _fixed(new, key), key)]
    if found:
        more = f"\n  and {len(found) - 5} more" if len(found) > 5 else ""
        raise RunError(
            f"{folder}: was started from another recipe and cannot be resumed with this one:\n  "
            + "\n  ".join(found[:5])
            + more
        )


def check_steps(folder: RunFolder, step: int, recipe: Recipe, steps: int) -> None:
    """Raise RunError if the run is beyond the last of the recipe's `steps`."""
    if step <= steps:
        return
    epochs = recipe.train.epochs
    last, remedy = f"train.steps: {steps:,}", f"set train.steps to {step:,} or more"
    if epochs is not None:
        last, remedy = f"train.epochs: {epochs} ({counted(steps, 'step')})", "increase train.epochs"
    raise RunError(f"{folder}: is at step {step:,}, beyond {last}; {remedy}, or choose another --out")


def changed_keys(folder: RunFolder, resolved: str, data: Data | None = None) -> list[str]:
    """Return a line that names the keys that differ from the last start, or [] if none is known to differ."""
    old, new = _both(folder, resolved, data)
    keys = dict.fromkeys([*old, *new])
    found = [line for key in keys for line in differences(_at(old, key), _at(new, key), key)]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return [f"changed since the last start: {'; '.join(found[:5])}{more}"] if found else []


def _both(folder: RunFolder, resolved: str, data: Data | None) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the recipe of the last start and the new one, where files that were only moved are equal.

    Both are empty if the run has no resolved.yaml.
    """
    if not (folder / RESOLVED).is_file():
        return {}, {}
    old, new = read_yaml(folder / RESOLVED), yaml.safe_load(resolved)
    if data is not None and _at(old, "data") != _at(new, "data"):
        old, new = _with_moved_files(folder, old, data), _test_by_name(new)
    return old, new


def _fixed(recipe: Any, key: str) -> Any:
    """Return the value at a key, without options that may change on resume."""
    value = _at(recipe, key)
    if key == "data" and isinstance(value, Mapping):
        return {name: option for name, option in value.items() if name != "shards"}  # does not change the batches
    # the teacher may have moved: its weights are identified by their hash
    return {**value, "run": ""} if key == TEACHER and isinstance(value, Mapping) else value


def _with_moved_files(folder: RunFolder, recipe: Any, data: Data) -> Any:
    """Replace the paths of moved data files in the run's recipe; files are identified by their recorded hash."""
    places = moved(folder.known.get(DATA), file_hashes(data))
    corpora = _at(recipe, "data")
    return _test_by_name({**recipe, "data": _replaced(corpora, places)} if isinstance(corpora, Mapping) else recipe)


def _test_by_name(recipe: Any) -> Any:
    """Reduce paths in the test split to file names, since training does not read its files."""
    test = _at(recipe, "data.test")
    if not isinstance(test, Mapping):
        return recipe
    named = {key: _names(value) for key, value in test.items()}
    return {**recipe, "data": {**recipe["data"], "test": named}}


def _names(value: Any) -> Any:
    if isinstance(value, list):
        return [_names(one) for one in value]
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value


def _replaced(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(child, places) for key, child in value.items()}
    if isinstance(value, list):
        return [_replaced(child, places) for child in value]
    return places.get(value, value) if isinstance(value, str) else value


def _describe_contents(folder: RunFolder) -> str:
    if folder.holds_import:
        return "contains an imported model; "
    if folder.holds_quantized:
        return f"contains a run in {folder.known[QUANTIZED]}; "
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is None:
        results = _worth_keeping(folder)
        if results:
            return f"contains {results}, but no checkpoint; "
        return "contains a run without a checkpoint; --resume restarts it, "
    progress = read_progress(checkpoint)
    if progress.finished:
        return f"contains a finished run of {progress.step:,} steps; "
    return f"contains a run that stopped at step {progress.step:,}; --resume continues it, "


def _worth_keeping(folder: RunFolder) -> str:
    """List the files that would be lost if a run without a checkpoint were restarted."""
    found = [name for name in (WEIGHTS, EVALUATION) if (folder / name).exists()]
    found += ["the record of a finished run"] if folder.holds_run and "finished" in folder.known else []
    found += [f"{CHECKPOINTS}/{name}" for name in in_checkpoints(folder.path)[:3]]
    found += [f"{path.name}/" for path in _renamed(folder)]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _renamed(folder: RunFolder) -> list[Path]:
    """Return folders that look like the run's checkpoints under another name."""
    places = [path for path in folder.path.iterdir() if path.is_dir() and path.name != CHECKPOINTS]
    return sorted(path for path in places if Checkpoints(path).last() is not None)


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key, ABSENT) if isinstance(data, Mapping) else ABSENT
    return data


def differences(old: Any, new: Any, path: str, sides: tuple[str, str] = ("run", "recipe")) -> Iterator[str]:
    """Yield a line for each dotted key whose values differ between two resolved recipes."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}", sides)
    elif (old is ABSENT and new in OFF) or (new is ABSENT and (old is None or old in OFF)):
        return  # one side was written by a version without this option
    elif old != new:
        yield f"{path}: {_shown(old)} in the {sides[0]}, {_shown(new)} in the {sides[1]}"


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else "none" if value is None else f"{value}"


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
