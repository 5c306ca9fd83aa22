"""Provenance of a printed number: the runs and study variants whose score rounds to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import RunError, UsageError
from tfkit.studies.compare import study_report
from tfkit.studies.plan import PLAN, RUNS
from tfkit.studies.plan_file import read_plan
from tfkit.studies.run_list import RunRow, check_key

NUMBER = re.compile(r"\s*([\w.\-]+)\s*=\s*([-+]?\d*\.?(\d*)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class PrintedNumber:
    """A measure and its printed value: `valid.loss=1.865` matches values from 1.8645 to 1.8655."""

    measure: str
    value: float
    reach: float  # half a unit of the last digit

    @classmethod
    def of(cls, text: str) -> PrintedNumber:
        """Parse MEASURE=NUMBER; raise UsageError if it is malformed."""
        match = NUMBER.fullmatch(text)
        try:
            value = float(match[2]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise UsageError(f"--produced {text!r}: write a measure and a number: valid.loss=1.865")
        exponent = re.search(r"[eE]([-+]?\d+)", match[2])
        return cls(match[1], value, 0.5 * 10.0 ** ((int(exponent[1]) if exponent else 0) - len(match[3])))

    def matches(self, value: object) -> bool:
        """True if the value rounds to the printed number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(float(str(value)) - self.value) <= self.reach * (1 + 1e-9)


def producers(runs: Sequence[RunRow], number: PrintedNumber) -> list[RunRow]:
    """Return the runs that have the printed value. Raise UsageError for a measure that no run has."""
    check_key(runs, number.measure, f"--produced {number.measure}")
    return [row for row in runs if any(number.matches(value) for value in row.lookup(number.measure))]


def means(runs: Sequence[RunRow], number: PrintedNumber) -> Iterator[str]:
    """Describe the study variants whose mean, or difference from the baseline, rounds to the printed number."""
    for folder in dict.fromkeys(study for row in runs if (study := study_of_run(row.folder)) is not None):
        try:
            results = study_report(read_plan(folder), folder).results
        except RunError:
            continue
        for arm in results.own:
            spread = arm.spread(number.measure)
            if spread is not None and spread.n > 1 and number.matches(spread.mean):
                yield f"{folder}: {arm.name}: mean of {spread.n} runs, {spread.mean:.6g}"
        for one in results.comparisons:
            if one.measure == number.measure and number.matches(one.mean):
                yield f"{folder}: {one.arm}: difference from {one.against}, {one.mean:.6g}"


def study_of_run(run: Path) -> Path | None:
    """Return the folder of the study that a run belongs to, if any."""
    folder = run.absolute().parent.parent
    return run.parent.parent if run.absolute().parent.name == RUNS and (folder / PLAN).is_file() else None
