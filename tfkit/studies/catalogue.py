"""Finished runs in other folders that equal a planned run: same recipe, values, seed, data and code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

import yaml

from tfkit.core.errors import TfkitError
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.study import GENERATION_RATE
from tfkit.storage.checksums import SUMS, read_sums
from tfkit.storage.files import read_yaml
from tfkit.studies.arms import StudySource, without_seed
from tfkit.studies.board import Board
from tfkit.studies.keeping import keeps
from tfkit.studies.plan import RUNS, Plan, PlannedRun
from tfkit.studies.reused import pointer_of, write_reused
from tfkit.studies.run_list import run_folders
from tfkit.training.changed import DATA, file_hashes, teacher_hashes
from tfkit.training.claim import RUNS as TRAINED
from tfkit.training.device import choose_device
from tfkit.training.environment import versions
from tfkit.training.folder import ENVIRONMENT, EVALUATION, METRICS, RESOLVED, RUN, WEIGHTS, RunFolder
from tfkit.training.history import History, read_history
from tfkit.training.labels import read_labels
from tfkit.training.needs import NEEDS, recorded
from tfkit.training.record import changed
from tfkit.training.vocabularies import load_tokenizer

MACHINE = ("tokens_per_second", "seconds", "peak_memory", GENERATION_RATE)  # measures that depend on it
CHECKED = (RUN, EVALUATION, METRICS, RESOLVED, ENVIRONMENT)


@dataclass(frozen=True)
class Catalogue:
    """The finished runs in runs/ and in the folders of this and neighbouring studies."""

    source: StudySource
    plan: Plan
    folder: Path
    edited: list[str] = field(default_factory=list)  # why equal runs were not taken

    def find(self, run: PlannedRun) -> RunFolder | None:
        """Return a run that equals a planned one; None without any, or if the study measures the machine too."""
        if not self.plan.reuse or set(self.plan.measure) & set(MACHINE):
            return None
        own = (self.folder / RUNS / run.name).absolute()
        for folder, history in self._finished:
            if folder.path.absolute() != own and self._may_equal(history, run) and self._equals(folder, history, run):
                problem = _edited(folder)
                if not problem:
                    return folder
                self.edited.append(f"{problem}, so it is not reused for {run.name}")
        return None

    @cached_property
    def _finished(self) -> list[tuple[RunFolder, History]]:
        """Runs that ended as planned, trained by this code and these versions, with the files of `study.keep`."""
        ended = (
            (folder, _ended(folder)) for path in self._places() if keeps(folder := RunFolder(path), self.plan.keep)
        )
        return [(folder, history) for folder, history in ended if history is not None]

    def _places(self) -> Iterator[Path]:
        studies = sorted(file.parent for file in self.folder.absolute().parent.glob(f"*/{Plan.FILE}"))
        for place in (TRAINED, *(study / RUNS for study in studies)):
            if place.is_dir():
                yield from run_folders(place)

    def _may_equal(self, history: History, run: PlannedRun) -> bool:
        """Compare what needs no recipe."""
        arm = self.plan.arm(run.arm)
        steps = history.finished == "patience" or history.steps == self.plan.run_steps(run)
        return history.seed == run.seed and steps and (bool(run.probe) or history.parameters == arm.parameters)

    def _equals(self, folder: RunFolder, history: History, run: PlannedRun) -> bool:
        """Compare the resolved recipes, with data files by their hashes."""
        try:
            recipe = self._recipe(run).labelled(len(read_labels(folder)))
            reads_texts = recipe.data is None or recipe.data.tokenizer is not None
            sizes = load_tokenizer(folder).sizes if reads_texts else None
            known = folder.known
            if any(start.device != str(choose_device(recipe.train.device)) for start in history.starts):
                return False
            if _code(known.get(NEEDS)) != _code(recorded(recipe, folder.path, sizes)):
                return False
            hashes = ({} if recipe.data is None else file_hashes(recipe.data)) | teacher_hashes(recipe.train)
            before = _by_file(known.get(DATA))
            here = _comparable(yaml.safe_load(recipe.resolved(sizes)), _by_file(hashes))
            there = _comparable(dict(read_yaml(folder / RESOLVED)), before)
            return bool(here == there) and not _newer(here, history)
        except (TfkitError, OSError):
            return False

    def _recipe(self, run: PlannedRun) -> Recipe:
        return self.source.recipe(self.plan.arm(run.arm).variants, self.plan.values(run))


def reuse(board: Board, catalogue: Catalogue, run: PlannedRun) -> RunFolder | None:
    """Let an equal run of another folder serve as a planned one that has not begun; None if there is none."""
    own = board.own_folder(run).path
    found = None if own.exists() else catalogue.find(run)
    if found is not None:
        write_reused(own, found)
        if board.state(run) == "done":
            return found
    pointer_of(own).unlink(missing_ok=True)
    return None


def _ended(folder: RunFolder) -> History | None:
    """Return the history of a run that ended as planned with this code and these versions, else None."""
    try:
        history = read_history(folder)
        finished = bool(folder.known.get("finished")) and ((folder / WEIGHTS).is_file() or WEIGHTS in folder.removed)
    except TfkitError:
        return None
    if history is None or not finished or history.finished not in ("steps", "patience"):
        return None
    now = {name: version for name, version in versions().items() if name != "platform"}
    same = all({name: start.versions.get(name) for name in now} == now for start in history.starts)
    return history if same and history.starts else None


def _edited(folder: RunFolder) -> str:
    """Return the first reason not to trust a run's files; empty if they agree with its manifest."""
    try:
        if read_sums(folder.path) is None:
            return f"{folder}: has no {SUMS}"
        return next(changed(folder, CHECKED), "")
    except TfkitError as error:
        return str(error)


def _by_file(hashes: object) -> dict[str, str]:
    """Return the hashes of data files by path, from the sections of environment.json."""
    sections = hashes.values() if isinstance(hashes, Mapping) else ()
    return {str(file): str(one) for files in sections if isinstance(files, Mapping) for file, one in files.items()}


def _comparable(resolved: Mapping[str, object], hashes: Mapping[str, str]) -> object:
    """Return a resolved recipe without seed and device, with each hashed file replaced by its hash."""
    data = resolved.get("data")
    data = {key: value for key, value in data.items() if key != "folder"} if isinstance(data, Mapping) else data
    return _replaced({**without_seed(resolved), "data": data}, hashes)


def _replaced(value: object, hashes: Mapping[str, str]) -> object:
    if isinstance(value, Mapping):
        return {key: _replaced(child, hashes) for key, child in value.items()}
    if isinstance(value, list):
        return [_replaced(child, hashes) for child in value]
    return hashes.get(value, value) if isinstance(value, str) else value


def _newer(value: object, history: History) -> bool:
    """True if a recipe names a file or folder without a recorded hash that changed after the run had begun."""
    if isinstance(value, Mapping | list):
        return any(_newer(child, history) for child in (value.values() if isinstance(value, Mapping) else value))
    if not isinstance(value, str) or os.sep not in value or not os.path.exists(value):
        return False
    path = Path(value)
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    return max(file.stat().st_mtime for file in files) >= datetime.fromisoformat(history.starts[0].at).timestamp()


def _code(needs: object) -> list[tuple[object, ...]]:
    """Return the identity of third-party code, wherever it lies."""
    keys, found = ("door", "sha256", "distribution", "version"), needs if isinstance(needs, list) else []
    return [tuple(need.get(key) for key in keys) for need in found if isinstance(need, Mapping)]
