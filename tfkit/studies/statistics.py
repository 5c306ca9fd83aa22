"""Paired comparisons over seeds: intervals, Holm's correction, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tfkit.core.extras import optional

DIGITS = 4  # of a printed score
LEVEL = 0.05  # significance level of the adjusted p
RESAMPLES = 10_000
EQUAL = 1e-9  # relative rounding tolerance
Verdict = Literal["better", "worse", "within the noise", "open", "diverged"]


@dataclass(frozen=True)
class Spread:
    """Statistics of one arm's runs: mean, sample standard deviation, minimum, maximum and count."""

    n: int
    mean: float
    sd: float | None  # None for a single value
    least: float
    most: float
    low: float | None  # 95 % interval of the mean by Student's t
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with another on one measure, paired by seed: `mean` is the mean of arm minus other.

    `low` and `high` bound the 95 % interval by Student's t, `boot_low` and `boot_high` that of the percentile bootstrap
    (10,000 resamples); `p` is that of the paired t test, `p_holm` after Holm's correction (Holm 1979) over all
    comparisons of the study. Identical differences have no p. `diverged` is the number of diverged runs of the arm.
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

    @property
    def is_identical(self) -> bool:
        """True if all differences are equal, so that their spread is unknown."""
        return self.n > 1 and self.p is None

    def words(self) -> str:
        """Describe the verdict."""
        if self.verdict == "diverged" or (self.verdict == "open" and self.diverged):
            return f"diverged in {self.diverged} of {self.runs}"
        why = "identical differences" if self.is_identical else f"{self.n} pair{'s' * (self.n != 1)} of runs"
        words: str = self.verdict if self.verdict != "open" else f"open: {why}"
        return words + (f", diverged in {self.diverged} of {self.runs}" if self.diverged else "")


def spread(values: Sequence[float]) -> Spread | None:
    """Compute the statistics of some runs; None without runs."""
    if not values:
        return None
    mean = float(np.mean(values))
    low, high, _ = _interval(values)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(len(values), mean, sd, min(values), max(values), low, high)


def compared(
    arm: str,
    against: str,
    measure: str,
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    step: float = 0.0,
) -> Comparison:
    """Compare two arms by seed; None is a diverged run, missing seeds are omitted.

    The standard deviation of the differences is at least half a `step` of the measure, and half a unit of the last
    printed digit.
    """
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
    largest = max(abs(float(side[seed] or 0.0)) for side in (ours, theirs) for seed in seeds)
    low, high, p = _interval(differences, max(step / 2, _half_digit(largest)))
    mean = float(np.mean(differences))
    if max(differences) - min(differences) <= EQUAL * largest:
        return replace(found, mean=mean, low=low, high=high)
    boot_low, boot_high = _bootstrap(differences)
    return replace(found, mean=mean, low=low, high=high, boot_low=boot_low, boot_high=boot_high, p=p)


def share_step(scores: Sequence[float], examples: int) -> float:
    """Return the step of a score that is a percentage or fraction of the examples; 0 for other scores."""
    for whole in (100.0, 1.0):
        counts = [score * examples / whole for score in scores]
        if all(0 <= count <= examples + EQUAL and abs(count - round(count)) < EQUAL * examples for count in counts):
            return whole / examples if examples else 0.0
    return 0.0


def judged(comparisons: Sequence[Comparison], rising: Sequence[str]) -> list[Comparison]:
    """Apply Holm's correction over all comparisons and add verdicts; for `rising` measures larger is better."""
    adjusted = holm([one.p for one in comparisons])
    return [
        replace(one, p_holm=p, verdict=_verdict(replace(one, p_holm=p), one.measure in rising))
        for one, p in zip(comparisons, adjusted, strict=True)
    ]


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's step-down correction; None is ignored."""
    order = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted


def claim_verdict(one: Comparison, rising: bool) -> Literal["held", "not held", "open"]:
    """Return "held" if the arm's value is the smaller one; an arm that always diverges has the worst value."""
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


def _half_digit(value: float) -> float:
    """Return half a unit of the last printed digit."""
    return 0.5 * 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS) if value else 0.0


def _interval(values: Sequence[float], floor: float = 0.0) -> tuple[float | None, float | None, float | None]:
    """Return the 95 % interval of the mean by Student's t, and the p of a mean of 0; None for a single value.

    `floor` is the minimum standard deviation.
    """
    n = len(values)
    if n < 2:
        return None, None, None
    mean, error = float(np.mean(values)), max(float(np.std(values, ddof=1)), floor) / math.sqrt(n)
    if error == 0.0:
        return mean, mean, None
    student = _scipy_stats().t(n - 1)
    reach = float(student.ppf(0.975)) * error
    return mean - reach, mean + reach, 2 * float(student.sf(abs(mean) / error))


def _bootstrap(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 2.5 and 97.5 percentiles of bootstrap means, with a fixed seed."""
    if len(values) < 2:
        return None, None
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _scipy_stats() -> Any:
    return optional("scipy.stats", "study", "intervals need")
