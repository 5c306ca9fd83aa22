"""Differences of a study by size (`study.sizes`): does one that the smallest size has hold at the largest?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfkit.studies.plan import EXACT
from tfkit.studies.results import ArmResult, Results
from tfkit.studies.settings import at_size
from tfkit.studies.statistics import Comparison, compared, judged

HELP = (
    "The difference of each variant from the baseline of the same size, and how it changes from the smallest size to "
    "the largest: the mean over seeds of the difference of differences, with its interval (t distribution, Bonferroni "
    "over the rows). Holds: it is beyond the noise at both sizes, in the same direction, and does not shrink. Shrinks: "
    "it is beyond the noise at the smallest size, and its change is beyond the noise in the other direction. Reverses: "
    "it is beyond the noise at both sizes, in opposite directions. Cannot tell: anything else."
)


@dataclass(frozen=True)
class Trend:
    """Difference of a variant from its baseline by size, smallest first, and its change to the largest size."""

    arm: str
    by_size: Mapping[str, Comparison]
    change: Comparison

    @property
    def verdict(self) -> str:
        """One of "holds", "shrinks", "reverses" and "cannot tell"."""
        small, *_, large = (one.better for one in self.by_size.values())
        if small is None:
            return "cannot tell"
        if large is not None and large is not small:
            return "reverses"
        if self.change.better is not None and self.change.better is not small:
            return "shrinks"
        return "holds" if large is small else "cannot tell"

    def as_data(self) -> dict[str, Any]:
        """Return the entry of results.json; the differences by size are among the comparisons."""
        return {"arm": self.arm, "verdict": self.verdict, "change": asdict(self.change)}


def trends(results: Results) -> list[Trend]:
    """Return the trend of each variant on each measure; empty without sizes."""
    found = [one for measure in results.measure if measure not in EXACT for one in _rows(results, measure)]
    changes = judged([change for *_, change in found], results.rising)
    return [Trend(name, rows, change) for (name, rows, _), change in zip(found, changes, strict=True)]


def _rows(results: Results, measure: str) -> Iterator[tuple[str, dict[str, Comparison], Comparison]]:
    """Yield each variant that has a comparison at all sizes, with these and its uncorrected change."""
    sizes = sorted(results.sizes, key=lambda size: results.at(size).arms[0].parameters)
    known = {one.arm: one for one in results.comparisons if one.measure == measure}
    names = [arm.name.removesuffix(f"@{arm.size}") for arm in results.own if sizes and arm.size == sizes[0]]
    for name in names:
        rows = {size: known[at_size(name, size)] for size in sizes if at_size(name, size) in known}
        if len(rows) < max(2, len(sizes)):
            continue
        small, large = (_differences(results, at_size(name, size), measure) for size in (sizes[0], sizes[-1]))
        yield name, rows, compared(f"{name}@{sizes[-1]}", f"{name}@{sizes[0]}", measure, large, small)


def _differences(results: Results, name: str, measure: str) -> dict[int, float | None]:
    """Return the difference of an arm from the baseline of its size by seed, of pairs without lost runs."""
    by_name: dict[str, ArmResult] = {arm.name: arm for arm in results.arms}
    base = results.at(by_name[name].size).arms[0].values(measure)
    pairs = [(seed, value, base.get(seed)) for seed, value in by_name[name].values(measure).items()]
    return {seed: value - other for seed, value, other in pairs if value is not None and other is not None}
