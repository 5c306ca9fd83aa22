"""Paired comparisons over seeds: intervals, Holm's correction, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tfkit.core.extras import optional

LEVEL = 0.05  # an adjusted p below it is a difference beyond the noise
RESAMPLES = 10_000
Verdict = Literal["better", "worse", "within the noise", "open", "diverged"]


@dataclass(frozen=True)
class Spread:
    """What the runs of one arm measured: the mean, the sample standard deviation, the extremes, and of how many."""

    n: int
    mean: float
    sd: float | None  # None of a single value
    least: float
    most: float
    low: float | None  # the 95 % interval of the mean by Student's t
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """An arm against another on one measure, paired by seed: `mean` is the arm's value less the other's.

    `low` and `high` bound the 95 % interval by Student's t, `boot_low` and `boot_high` that of the percentile bootstrap
    (10,000 resamples); `p` is that of the paired t test, `p_holm` after Holm's correction (Holm 1979) over all
    comparisons of the study. `diverged` is of how many runs of the arm.
    """

    arm: str
    against: str
    measure: str
    n: int
    runs: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    boot_low: float | None = None
    boot_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    diverged: int = 0
    diverged_against: int = 0
    verdict: Verdict = "open"

    def words(self) -> str:
        """The verdict in words."""
        if self.verdict == "diverged" or (self.verdict == "open" and self.diverged):
            return f"diverged in {self.diverged} of {self.runs}"
        words: str = self.verdict if self.verdict != "open" else f"open: {self.n} pair{'s' * (self.n != 1)} of runs"
        return words + (f", diverged in {self.diverged} of {self.runs}" if self.diverged else "")


def spread(values: Sequence[float]) -> Spread | None:
    """What some runs measured, None of no runs."""
    if not values:
        return None
    mean = float(np.mean(values))
    low, high, _ = _interval(values)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(len(values), mean, sd, min(values), max(values), low, high)


def compared(
    arm: str, against: str, measure: str, ours: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> Comparison:
    """The comparison of two arms by seed, None of a run that diverged; a missing one is left out."""
    seeds = [seed for seed in ours if ours[seed] is not None and theirs.get(seed) is not None]
    differences = [float(ours[seed] or 0.0) - float(theirs[seed] or 0.0) for seed in seeds]
    found = Comparison(
        arm,
        against,
        measure,
        len(seeds),
        len(ours),
        diverged=sum(value is None for value in ours.values()),
        diverged_against=sum(value is None for value in theirs.values()),
    )
    if not differences:
        return found
    low, high, p = _interval(differences)
    boot_low, boot_high = _bootstrap(differences)
    mean = float(np.mean(differences))
    return replace(found, mean=mean, low=low, high=high, boot_low=boot_low, boot_high=boot_high, p=p)


def judged(comparisons: Sequence[Comparison], rising: Sequence[str]) -> list[Comparison]:
    """The same with Holm's correction over all of them, and verdicts; of `rising` measures more is better."""
    adjusted = holm([one.p for one in comparisons])
    return [
        replace(one, p_holm=p, verdict=_verdict(replace(one, p_holm=p), one.measure in rising))
        for one, p in zip(comparisons, adjusted, strict=True)
    ]


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction; a None stays None and counts for nothing."""
    order = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted


def claim_verdict(one: Comparison, rising: bool) -> Literal["held", "not held", "open"]:
    """Whether the arm's value is the smaller one, as claimed; an arm that always diverges has the worst value."""
    all_ours, all_theirs = one.diverged == one.runs > 0, one.diverged_against == one.runs > 0
    if all_ours != all_theirs:
        return "held" if all_ours == rising else "not held"
    if one.mean is None or one.p_holm is None or one.p_holm >= LEVEL:
        return "open"
    return "held" if one.mean < 0 else "not held"


def _verdict(one: Comparison, rising: bool) -> Verdict:
    if one.diverged == one.runs > 0:
        return "diverged"
    if one.mean is None or one.p_holm is None:
        return "open"
    if one.p_holm >= LEVEL:
        return "within the noise"
    return "better" if (one.mean > 0) == rising else "worse"


def _interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The 95 % interval of the mean by Student's t, and the p of a mean of 0; None of a single value."""
    n = len(values)
    if n < 2:
        return None, None, None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(n)
    if error == 0.0:
        return mean, mean, (0.0 if mean else 1.0)
    student = _scipy_stats().t(n - 1)
    reach = float(student.ppf(0.975)) * error
    return mean - reach, mean + reach, 2 * float(student.sf(abs(mean) / error))


def _bootstrap(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 2.5 and 97.5 percentiles of the means of resamples, always the same ones."""
    if len(values) < 2:
        return None, None
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _scipy_stats() -> Any:
    return optional("scipy.stats", "study", "intervals need")
