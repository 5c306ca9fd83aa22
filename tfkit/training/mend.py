"""Damaged files that training does not need: they are moved aside and reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tfkit.core.errors import RunError
from tfkit.storage import checksums
from tfkit.storage.files import damaged_name, open_log, read_bytes, read_json, read_text, read_yaml
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
    for name in READERS:
        file = folder / name
        if file.exists() and (why := _damage(folder, name)):
            aside = damaged_name(file)
            with checksums.changing(folder.path, name):
                try:
                    os.rename(file, aside)
                except OSError as error:
                    raise RunError(f"{file}: cannot be renamed: {error.strerror}") from None
            unchecked = f"; {UNCHECKED}" if name == RESOLVED else ""
            yield f"{file}: {why}; moved to {aside.name}; a new file is started{unchecked}"
    file, step = folder / METRICS, 0 if last is None else step_of(last)
    lines = good_lines(read_bytes(file))[0] if file.exists() else []
    if missing := step - len({step_in(line) for line in lines if step_in(line) <= step}):
        yield f"{file}: the lines of {missing:,} of {step:,} steps are missing"


def _damage(folder: RunFolder, name: str) -> str:
    """Return what is wrong with a file, or ""."""
    try:
        READERS[name](folder / name)
    except RunError as error:
        return str(error).removeprefix(f"{folder / name}: ")
    return "has changed since it was written" if any(record.changed(folder, [name])) else ""


def _read_scores(file: Path) -> None:
    if not isinstance(read_json(file), dict):
        raise RunError(f"{file}: contains no scores")


def _read_metrics(file: Path) -> None:
    """Raise RunError for damaged lines. A truncated last line comes from a killed process and is no damage."""
    if bad := good_lines(read_bytes(file))[1]:
        raise RunError(f"{file}: {bad:,} damaged lines")


READERS: dict[str, Callable[[Path], object]] = {
    RESOLVED: read_yaml,
    RECIPE: read_text,
    EVALUATION: _read_scores,
    RUN: lambda file: read_history(RunFolder(file.parent)),
    LOG: lambda file: open_log(file).close(),
    METRICS: _read_metrics,
}
