"""Runs as rows of a table: description, progress and scores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.core.synonyms import nearest
from tfkit.recipe.text.condition import Condition
from tfkit.recipe.text.node import Node, inline
from tfkit.recipe.text.source import read
from tfkit.reports.parts_table import rows, say
from tfkit.runs.checkpoint import Checkpoints, Progress, read_progress
from tfkit.runs.folder import CHECKPOINTS, EVALUATION, RESOLVED, RunFolder
from tfkit.runs.history import History, read_history
from tfkit.storage.files import held_by, read_json
from tfkit.training.progress import duration

LARGEST = 1e30  # maximum score; NaN and infinity are excluded
COLUMNS = ("run", "status", "step", "valid.loss", "tokens_per_second", "time")  # default columns of the table


@dataclass(frozen=True)
class RunRow:
    """One run: `values` by column; its resolved.yaml is read on first use."""

    folder: Path
    values: Mapping[str, Any]
    problem: str = ""  # reason why it cannot be read

    @cached_property
    def settings(self) -> dict[str, list[object]]:
        """Return the values of resolved.yaml by dotted key, several for keys in lists. A part counts as its type."""
        try:
            root, _ = read(self.folder / RESOLVED)
        except RecipeError:
            return {}
        values: dict[str, list[object]] = {}
        for path, value in _leaves(root, ""):
            values.setdefault(path, []).append(value)
        return values

    def lookup(self, key: str) -> list[object]:
        """Return the values of a column, or of the outermost settings whose dotted key equals or ends in `key`.

        For example, `norm` selects the norm of the layers, not one within an attention. Values `none` are dropped,
        unless all are.
        """
        if key in self.values:
            return [] if self.values[key] is None else [self.values[key]]
        paths = [path for path in self.settings if f".{path}".endswith(f".{key}")]
        outermost = min((path.count(".") for path in paths), default=0)
        found = [value for path in paths if path.count(".") == outermost for value in self.settings[path]]
        return [value for value in found if value is not None] or found

    def shown(self, key: str) -> str:
        return ", ".join(dict.fromkeys(map(_word, self.lookup(key))))


def runs_in(folders: Sequence[Path]) -> list[RunRow]:
    """Return all runs in these folders at any depth, or the folders themselves if they are runs, sorted by name."""
    runs = {folder: None for place in folders for folder in sorted(_run_folders(place))}
    return [_row(folder) for folder in runs]


def _run_folders(place: Path) -> Iterator[Path]:
    """Yield the run folders in a folder, at any depth. Raise UsageError if it is missing."""
    if not place.is_dir():
        raise UsageError(f"{place}: no such folder")
    for folder, names, _ in os.walk(place):
        if RunFolder(Path(folder)).holds_run:
            names.clear()
            yield Path(folder)
        else:
            names[:] = [name for name in names if not name.startswith(".")]


def _row(path: Path) -> RunRow:
    folder = RunFolder(path)
    try:
        history = read_history(folder)
        checkpoint = Checkpoints(folder / CHECKPOINTS).last()
        progress = _recorded(history) if checkpoint is None else read_progress(checkpoint)
        known = folder.known
        values = {"run": str(path), "status": _status(folder, history, progress)}
        values |= _of_history(history, known) | _of_progress(progress) | scores_of(folder)
        return RunRow(path, values)
    except RunError as error:
        return RunRow(path, {"run": str(path), "status": "damaged"}, str(error))


def _recorded(history: History | None) -> Progress | None:
    """Return the progress of a finished run whose checkpoints were deleted."""
    if history is None or not history.finished:
        return None
    known = history.model_dump(include={"tokens", "targets", "best_step", "finished"})
    return Progress.model_validate({**known, "step": history.steps, "scores": history.best})


def _status(folder: RunFolder, history: History | None, progress: Progress | None) -> str:
    if folder.holds_import:
        return "imported"
    if held_by(folder.path) is not None:
        return "training"
    if progress is not None and progress.finished:
        return "finished"
    return "diverged" if history is not None and history.diverged is not None else "stopped"


def _of_history(history: History | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of run.json; for older runs those of environment.json."""
    if history is None:
        return {"recipe": known.get("recipe"), "seed": known.get("seed"), "started": known.get("started")}
    seconds = history.seconds or None
    return {
        "recipe": history.recipe,
        "variants": ", ".join(history.variants) or None,
        "set": json.dumps(history.set, ensure_ascii=False) if history.set else None,
        "seed": history.seed,
        "parameters": history.parameters,
        "seconds": seconds,
        "time": seconds and duration(seconds),
        "tokens_per_second": seconds and round(history.tokens / seconds),
        "started": history.starts[0].at if history.starts else None,
        "starts": len(history.starts),
        "device": history.starts[-1].device if history.starts else None,
        "threads": history.starts[-1].threads if history.starts else None,
    }


def _of_progress(progress: Progress | None) -> dict[str, object]:
    if progress is None:
        return {}
    best = progress.scores or ({} if progress.best is None else {"loss": progress.best})
    return {
        "step": progress.step,
        "tokens": progress.tokens,
        "targets": progress.targets,
        **{f"valid.{name}": score for name, score in best.items()},
        "best_step": progress.best_step if best else None,
    }


def scores_of(folder: RunFolder) -> dict[str, Any]:
    """Return the scores of evaluation.json, as `test.bleu`; valid.loss is omitted, because it comes from training."""
    file = folder / EVALUATION
    evaluation = read_json(file) if file.is_file() else {}
    if not isinstance(evaluation, dict):
        return {}
    splits = {split: one for split, one in evaluation.items() if isinstance(one, dict)}
    scores = {f"{split}.{name}": value for split, one in splits.items() for name, value in one.items()}
    kept = {name: value for name, value in scores.items() if name != "valid.loss" and not name.endswith(".examples")}
    return {name: value for name, value in kept.items() if is_score(value)}


def is_score(value: Any) -> bool:
    """True if the value is a comparable number."""
    return type(value) in (int, float) and abs(value) < LARGEST


def _leaves(node: Node, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the scalars of a tree by dotted key; a mapping with a type also yields that type for its own key."""
    if isinstance(node.value, dict):
        if path and (kind := node.value.get("type")) is not None and isinstance(kind.value, str):
            yield path, kind.value
        for key, child in node.value.items():
            yield from _leaves(child, f"{path}.{key}" if path else key)
    elif isinstance(node.value, list):
        for child in node.value:
            yield from _leaves(child, path)
    else:
        yield path, node.value


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if 0.001 <= abs(value) < 1e6 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else inline(value)


def selected(runs: Sequence[RunRow], conditions: Iterable[str], by: str | None, reverse: bool) -> list[RunRow]:
    """Return the runs that satisfy all conditions, sorted by a key, those without the key last."""
    try:
        filters = [Condition.of(text) for text in conditions]
    except ValueError as error:
        raise UsageError(f"--where {error}") from None
    for key, option in [(one.key, f"--where {one.text}") for one in filters] + ([(by, f"--sort {by}")] if by else []):
        check_key(runs, key, option)
    kept = [row for row in runs if all(one.holds(row.lookup(one.key)) for one in filters)]
    if by is None:
        return kept[::-1] if reverse else kept
    sortable = [row for row in kept if row.lookup(by)]
    return sorted(sortable, key=lambda row: _order(row.lookup(by)[0]), reverse=reverse) + [
        row for row in kept if not row.lookup(by)
    ]


def _order(value: Any) -> tuple[bool, Any]:
    """Return the sort key, which puts numbers before words."""
    return (False, value) if isinstance(value, int | float) else (True, _word(value))


def check_key(runs: Sequence[RunRow], key: str, option: str) -> None:
    """Raise UsageError for a key that no run has."""
    if not runs or any(key in row.values or row.lookup(key) for row in runs):
        return
    known = {name for row in runs for name in row.values}
    known |= {end for row in runs for path in row.settings for end in (path, path.rpartition(".")[2])}
    hint = nearest(key, sorted(known))
    raise UsageError(f"{option}: no run has '{key}'" + (f". Did you mean '{hint}'?" if hint else ""))


def columns_of(runs: Sequence[RunRow]) -> list[str]:
    """Return all columns in order of appearance."""
    return list(dict.fromkeys(name for row in runs for name in row.values))


def as_data(runs: Sequence[RunRow], columns: Sequence[str]) -> list[dict[str, object]]:
    """Return the runs for --json and --csv with exact figures."""
    return [{name: _exact(row.lookup(name)) for name in columns} for row in runs]


def _exact(values: list[Any]) -> Any:
    once = list(dict.fromkeys(values))
    return once[0] if len(once) == 1 else ", ".join(map(str, once)) if once else None


def render(runs: Sequence[RunRow], columns: Sequence[str], console: Console) -> None:
    """Print the runs as a table, and the problems of unreadable ones."""
    rows(console, [[row.shown(name) for name in columns] for row in runs], list(columns))
    for row in runs:
        if row.problem:
            say(console, row.problem, "dim")
