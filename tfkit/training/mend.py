"""Repair of a run: damaged files that training does not need are set aside and reported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.storage import checksums
from tfkit.storage.files import open_log, read_bytes, read_json, read_text, read_yaml, whole, write_text
from tfkit.training import record
from tfkit.training.checkpoint import Checkpoints, step_of
from tfkit.training.folder import CHECKPOINTS, EVALUATION, LOG, METRICS, RECIPE, RESOLVED, RUN, RunFolder
from tfkit.training.history import read_history
from tfkit.training.metrics_log import good_lines, step_in

UNCHECKED = "the recipe cannot be compared with the run's"


def mend(folder: RunFolder) -> Iterator[str]:
    """Move damaged files aside, and yield one message per file. Raise RunError if a file cannot be moved."""
    last = Checkpoints(folder / CHECKPOINTS).last()
    if last is not None and not (folder / RESOLVED).exists():
        yield f"{folder / RESOLVED}: is missing; {UNCHECKED}"
    for name, problem in (
        (RESOLVED, _not_yaml),
        (RECIPE, _not_text),
        (EVALUATION, _not_scores),
        (RUN, _not_history),
        (LOG, _not_open),
    ):
        why = (problem(folder / name) or _changed(folder, name)) if (folder / name).exists() else ""
        if why:
            aside = _free_name(folder / name)
            _rename(folder / name, aside)
            checksums.forget(folder.path, (name,))
            unchecked = f"; {UNCHECKED}" if name == RESOLVED else ""
            yield f"{folder / name}: {why}; moved to {aside.name}; a new file is started{unchecked}"
    changed = _changed(folder, METRICS)
    messages = list(_mend_metrics(folder / METRICS, 0 if last is None else step_of(last)))
    yield from messages or ([f"{folder / METRICS}: {changed}"] if changed else [])
    if changed:
        checksums.forget(folder.path, (METRICS,))


def _mend_metrics(file: Path, step: int) -> Iterator[str]:
    """Drop invalid lines. A truncated last line comes from a killed process and does not count as damage."""
    try:
        text = read_bytes(file) if file.exists() else b""
    except RunError:
        text, aside = b"", _free_name(file)
        _rename(file, aside)
        yield f"{file}: cannot be read; moved to {aside.name}; a new file is started"
    good, bad = good_lines(text)
    if bad:
        aside = _free_name(file)
        with whole(aside) as beside:
            shutil.copyfile(file, beside)
        write_text(file, "".join(f"{line}\n" for line in good))
        yield f"{file}: {bad} damaged lines removed; the original is {aside.name}"
    missing = step - len({step_in(line) for line in good if step_in(line) <= step})
    if missing > bad:
        yield f"{file}: the lines of {missing:,} of {step:,} steps are missing"


def _changed(folder: RunFolder, name: str) -> str:
    return "has changed since it was written" if any(record.changed(folder, [name])) else ""


def _not_yaml(file: Path) -> str:
    try:
        read_yaml(file)
    except RunError as error:
        return str(error).removeprefix(f"{file}: ")
    return ""


def _not_text(file: Path) -> str:
    try:
        read_text(file)
    except RunError:
        return "is not text"
    return ""


def _not_scores(file: Path) -> str:
    try:
        data = read_json(file)
    except RunError:
        return "is not JSON"
    return "" if isinstance(data, dict) else "contains no scores"


def _not_history(file: Path) -> str:
    try:
        read_history(RunFolder(file.parent))
    except RunError:
        return "is not the history of a run"
    return ""


def _not_open(file: Path) -> str:
    try:
        open_log(file).close()
    except RunError:
        return "cannot be written"
    return ""


def _free_name(file: Path) -> Path:
    """Return a free name, such as metrics.jsonl.damaged or metrics.jsonl.damaged-2."""
    aside, number = file.with_name(f"{file.name}.damaged"), 1
    while os.path.lexists(aside):
        number += 1
        aside = file.with_name(f"{file.name}.damaged-{number}")
    return aside


def _rename(file: Path, aside: Path) -> None:
    try:
        os.rename(file, aside)
    except OSError as error:
        raise RunError(f"{file}: cannot be renamed: {error.strerror}") from None
