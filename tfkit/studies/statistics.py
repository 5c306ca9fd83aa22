"""Paired comparisons over seeds: a pooled variance, Holm's correction, power, and a verdict in words.

Functions on arrays accept leading batch axes, so that a test can simulate thousands of studies at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfkit.core.errors import optional
from tfkit.core.machine import readable_bytes
from tfkit.studies.settings import COSTS

DIGITS = 4  # significant digits of a printed score
LEVEL = 0.05  # family-wise error of a study
POWER = 0.8
EQUAL = 1e-9  # relative rounding tolerance
SEEDS = 5  # number of seeds from which unequal spreads are noticed
POINTS = 400  # number of points in the numerical integration of power
MOST_SEEDS = 1000  # largest number of seeds considered in power calculations
OUTLYING, LARGER, PAIR_LARGER = 1e-4, 0.05, 0.1  # F-test level at which an arm is excluded from the pool
UNEVEN, NEIGHBOURS, SMALLEST = {2: 0.2, 3: 0.1, 4: 0.1, SEEDS: 0.01}, 10, 1e-4  # of `is_uneven`; level by seeds
FINEST = 100_000  # examples up to which the step of a score is recognized from its values
MOST_RANKED = 60  # largest number of runs for the exact rank sum test
Array = NDArray[np.float64]
Verdict = Literal["better", "worse", "cannot tell", "equal", "open", "diverged"]


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
class Pool:
    """Variance of a run about the additive effects of arm and seed, pooled over arms with similar spreads.

    `fits` is True for the arms whose spread does not exceed it, `arms` their number.
    """

    variance: Any  # [...]
    freedom: Any  # [...]
    fits: Any  # [..., arms]


@dataclass(frozen=True)
class Scale:
    """Properties of a measure: its resolution (smallest step between scores), direction and equivalence margin."""

    step: float = 0.0
    rising: bool = False
    margin: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with another on one measure, paired by seed: `mean` is the mean of arm minus other.

    `p` is that of the paired t test, `p_holm` after Holm's correction (Holm 1979) over all comparisons of the study.
    `low` and `high` bound the interval: the intervals of a study have a simultaneous coverage of 95 %. Runs that
    diverged or failed rank last, and p is that of the exact rank sum test (`by_rank`). If all differences are
    identical, there is no p. `seen` is the smallest difference that has 80 % power, `seeds` the number of seeds that
    gives the observed one 80 % power. `problem` is the reason why there is no verdict.
    """

    arm: str
    against: str
    measure: str
    n: int
    runs: int
    mean: float | None = None
    error: float | None = None  # standard error of the mean
    freedom: int = 0
    pooled: int = 0  # number of arms in the pooled variance; 0 if not pooled
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    by_rank: bool = False
    ahead: bool = False  # by_rank: the arm has the better mean rank
    seen: float | None = None
    seeds: int | None = None  # None if even MOST_SEEDS are too few
    diverged: int = 0
    diverged_against: int = 0
    failed: int = 0
    failed_against: int = 0
    margin: float | None = None
    bounds: list[float] | None = None  # of the true difference
    give: int = 0  # number of seeds that the arm should have; 0 if it has enough
    problem: str = ""
    mark: str = ""  # reservation that follows the verdict
    better: bool | None = None  # None if p_holm is not below the level
    verdict: Verdict = "open"

    @property
    def lost(self) -> tuple[int, int]:
        """Number of diverged and failed runs of the arm and of the other."""
        return self.diverged + self.failed, self.diverged_against + self.failed_against

    def words(self) -> str:
        return self._verdict_words() + self.ending

    @property
    def ending(self) -> str:
        """The reservation, as it follows a verdict."""
        return f"; {self.mark}" if self.mark else ""

    def _verdict_words(self) -> str:
        given = [f"give it {self.give} seeds"] * bool(self.give)
        lost = {"diverged in": self.diverged, "failed in": self.failed}
        against = "without it" if self.against == "without" else self.against  # an option of a design
        lost |= {f"{against} diverged in": self.diverged_against, f"{against} failed in": self.failed_against}
        counts = [f"{what} {count} of {self.runs}" for what, count in lost.items() if count]
        if self.verdict == "diverged":
            return ", ".join(counts + given)
        if self.verdict == "open":
            is_same = self.n > 1 and self.p is None
            pairs = "identical differences" if is_same else f"{self.n} pair{'s' * (self.n != 1)} of runs"
            why = [self.problem] if self.problem else []
            return f"open: {', '.join([*why, *(counts or [pairs] * (not why)), *given])}"
        needed = f" (would need {number(self.measure, self.seen)})"
        more = {"equal": f" within {self.margin or 0:g}", "cannot tell": needed}
        return ", ".join([self.verdict + more.get(self.verdict, ""), *counts, *given])


def number(measure: str, value: float | None) -> str:
    """Format a value of a measure."""
    if value is None:
        return ""
    if measure == "peak_memory":
        return readable_bytes(round(value))
    if measure == "seconds":
        return f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def spread(values: Sequence[float]) -> Spread | None:
    """Compute the statistics of some runs; None without runs."""
    if not values:
        return None
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Spread(n, mean, None, mean, mean, None, None)
    sd = float(np.std(values, ddof=1))
    reach = float(_scipy_stats().t.isf(LEVEL / 2, n - 1)) * sd / math.sqrt(n)
    return Spread(n, mean, sd, min(values), max(values), mean - reach, mean + reach)


def pooled(values: Array, floor: float = 0.0) -> Pool:
    """Pool the variance of arms [..., arms, seeds] about additive effects of arm and seed.

    Arms whose variance is far larger than that of the others (p of an F test under OUTLYING) are left out.
    `floor` is the minimum standard deviation of a difference, used when comparing the spreads of arms.
    """
    seeds, inside = values.shape[-1], np.ones(values.shape[:-1])
    but_one: Array | None = None  # all arms but the most outlying one
    fisher = _scipy_stats().f
    while True:
        arms = inside.sum(-1, keepdims=True)  # [..., 1]
        by_seed = (inside[..., None] * values).sum(-2, keepdims=True) / arms[..., None]  # [..., 1, seeds]
        rest = values - values.mean(-1, keepdims=True) - by_seed + by_seed.mean(-1, keepdims=True)
        squares = inside * (rest**2).sum(-1)  # [..., arms]
        own, total = squares * arms / np.maximum(arms - 1, 1), squares.sum(-1, keepdims=True)
        others = np.maximum(total - own, 0.0) / np.maximum(arms - 2, 1)  # times seeds - 1, as `own`
        others = np.maximum(others, (seeds - 1) * floor**2 / 2)
        ratio = np.divide(own, others, out=np.full_like(own, np.inf), where=others > 0)
        p = fisher.sf(ratio, seeds - 1, np.maximum(arms - 2, 1) * (seeds - 1))
        p = np.where((inside > 0) & (arms > 2) & (own > 0), p, 1.0)
        outlying = (p < OUTLYING) & (p == p.min(-1, keepdims=True))
        if not outlying.any():
            freedom, fits = (arms - 1) * (seeds - 1), (inside > 0) & (p > LARGER)
            uneven = is_uneven(values, inside if but_one is None else but_one, floor)
            return Pool((total / freedom)[..., 0], freedom[..., 0], fits & ~uneven[..., None])
        inside = inside * ~outlying
        but_one = inside if but_one is None else but_one


def is_uneven(values: Array, inside: Array, floor: float = 0.0) -> NDArray[np.bool_]:
    """True if differences of the arms `inside` vary too unequally over seeds to pool them, as near copies do, [...].

    The statistic is Bartlett's (1937), over pairs of arms up to NEIGHBOURS apart; its distribution is simulated.
    """
    seeds, counts = values.shape[-1], inside.sum(-1).astype(int)
    level = UNEVEN.get(seeds, UNEVEN[SEEDS])
    limits = {arms: np.quantile(_even(arms, seeds), 1 - level) for arms in np.unique(counts) if arms > 2}
    most: Array = np.vectorize(lambda arms: limits.get(arms, math.inf))(counts)
    return _unevenness(values, inside, floor) > most


@lru_cache(256)
def _even(arms: int, seeds: int) -> Array:
    """Draw the unevenness of arms that are normal with equal spreads."""
    draws = max(200, min(1000, 50_000 // arms))
    return _unevenness(np.random.default_rng(0).normal(size=(draws, arms, seeds)), np.ones((draws, arms)))


def _unevenness(values: Array, inside: Array, floor: float = 0.0) -> Array:
    centered, arms = values - values.mean(-1, keepdims=True), values.shape[-2]
    shifts = range(1, min(arms // 2, NEIGHBOURS) + 1)
    squares = np.concatenate([((centered - np.roll(centered, by, -2)) ** 2).sum(-1) for by in shifts], -1)
    weights = np.concatenate([inside * np.roll(inside, by, -1) for by in shifts], -1)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1)
    mean = np.maximum((weights * squares).sum(-1, keepdims=True), max(floor**2, 1e-300))
    squares = np.maximum(squares, np.maximum(SMALLEST * mean, floor**2))
    statistic: Array = np.log(mean[..., 0]) - (weights * np.log(squares)).sum(-1)
    return statistic


def standard_error(differences: Array, pool: Pool | None, fits: Any, floor: float = 0.0) -> tuple[Any, Any, Any]:
    """Return the standard error of mean differences [..., seeds], its degrees of freedom, and whether it is pooled.

    The pooled variance is used if both arms fit the pool (`fits`) and their differences do not vary more than it
    predicts. Otherwise, the error is the larger of the pooled and the pair's own, with the pair's degrees of freedom.
    `floor` is the minimum standard deviation of the differences.
    """
    seeds = differences.shape[-1]
    variance = differences.var(-1, ddof=1)
    freedom: Any = np.full(variance.shape, seeds - 1)
    is_pooled: Any = np.zeros(variance.shape, bool)
    if pool is not None:
        both = 2 * pool.variance
        ratio = variance / np.maximum(np.maximum(both, floor**2), 1e-300)
        is_pooled = fits & (_scipy_stats().f.sf(ratio, seeds - 1, pool.freedom) > PAIR_LARGER)
        variance = np.where(is_pooled, both, np.maximum(variance, both))
        freedom = np.where(is_pooled, pool.freedom, freedom)
    return np.sqrt(np.maximum(variance, floor**2) / seeds), freedom, is_pooled


def two_sided(mean: Any, error: Any, freedom: Any) -> Any:
    """Return the two-sided p-value for a true mean of 0."""
    return 2 * _scipy_stats().t.sf(np.abs(mean) / error, freedom)


def compared(
    arm: str,
    against: str,
    measure: str,
    values: Mapping[int, float | None],
    reference: Mapping[int, float | None],
    scale: Scale = Scale(),
    pool: Pool | None = None,
) -> Comparison:
    """Compare two arms by seed. None marks a run that diverged or failed; missing seeds are omitted.

    The standard deviation of the differences is at least a step of the measure, and half a unit of the last printed
    digit. `pool.fits` has an entry for each of the two arms.
    """
    seeds = [seed for seed in values if values[seed] is not None and reference.get(seed) is not None]
    ours, theirs = ([float(side[seed] or 0.0) for seed in seeds] for side in (values, reference))
    differences = np.array(ours) - np.array(theirs)
    lost = [sum(value is None for value in side.values()) for side in (values, reference)]
    result = Comparison(arm, against, measure, len(seeds), len(values), diverged=lost[0], diverged_against=lost[1])
    result = replace(result, margin=scale.margin, mean=float(differences.mean()) if seeds else None)
    if any(lost):
        p, ahead = rank_sum_test(list(values.values()), list(reference.values()), scale.rising)
        return replace(result, by_rank=True, p=p, ahead=ahead)
    if len(seeds) < 2:
        return result
    largest = max(map(abs, (*ours, *theirs)))
    fits = pool is not None and bool(pool.fits.all())
    error, freedom, is_pooled = standard_error(differences, pool, fits, max(scale.step, half_digit(largest)))
    unknown = pool is None or math.sqrt(pool.variance) <= EQUAL * largest
    if unknown and float(np.ptp(differences)) <= EQUAL * largest:
        return replace(result, error=float(error), freedom=int(freedom))
    p = float(two_sided(result.mean, error, freedom))
    share = round(int(freedom) / (len(seeds) - 1)) + 1 if bool(is_pooled) else 0
    give = SEEDS if pool is not None and not share and len(seeds) < SEEDS else 0
    bounds = bounds_of(measure, ours, theirs, scale.rising)
    return replace(result, error=float(error), freedom=int(freedom), pooled=share, p=p, give=give, bounds=bounds)


def bounds_of(measure: str, ours: Sequence[float], theirs: Sequence[float], rising: bool) -> list[float] | None:
    """Return the bounds of the true difference of percentages, or, by their intervals, of means of at least 0."""
    if min(*ours, *theirs) < 0:
        return None
    if rising and max(*ours, *theirs) <= 100 and not measure.endswith("tokens_per_second"):
        return [-100.0, 100.0]
    high, low = [found.high or 0.0 for side in (ours, theirs) if (found := spread(side)) is not None]
    return [-low, high]


def rank_sum_test(ours: Sequence[float | None], theirs: Sequence[float | None], rising: bool) -> tuple[float, bool]:
    """Return the exact two-sided p of the rank sum test (Wilcoxon 1945), and True if the first side ranks better.

    None ranks last.
    """
    values = [math.inf if value is None else -value if rising else value for value in (*ours, *theirs)]
    if len(values) > MOST_RANKED:
        found = _scipy_stats().mannwhitneyu(values[: len(ours)], values[len(ours) :], method="asymptotic")
        return float(found.pvalue), float(found.statistic) * 2 < len(ours) * len(theirs)
    ranks = np.rint(2 * _scipy_stats().rankdata(values)).astype(int)  # doubled, so that ranks of ties are integers
    ways = np.zeros((len(ours) + 1, int(ranks.sum()) + 1))  # number of ways, by number of runs and sum of their ranks
    ways[0, 0] = 1.0
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    shares, own = ways[-1] / ways[-1].sum(), int(ranks[: len(ours)].sum())
    p = min(1.0, 2 * float(min(shares[: own + 1].sum(), shares[own:].sum())))
    return p, own * len(theirs) < (int(ranks.sum()) - own) * len(ours)


def score_step(scores: Sequence[float], examples: int = 0) -> float:
    """Return the resolution of a score that is a percentage or fraction of the examples; 0 for other scores.

    If the number of examples is unknown, the smallest one consistent with the scores is assumed.
    """
    for whole in (100.0, 1.0) if examples or any(score > 1 for score in scores) else (1.0,):
        shares = [score / whole for score in scores]
        if not all(0 <= share <= 1 + EQUAL for share in shares):
            continue
        if examples and all(abs(share * examples - round(share * examples)) < EQUAL * examples for share in shares):
            return whole / examples
        fractions = [Fraction(share).limit_denominator(10_000) for share in shares]
        least = math.lcm(*(one.denominator for one in fractions))
        exact = all(abs(float(one) - share) < 1e-12 for one, share in zip(fractions, shares, strict=True))
        if not examples and exact and least <= FINEST:
            return whole / least
    return 0.0


def step_of(measure: str, scores: Sequence[float], examples: int) -> float:
    """Return the resolution of a measure with these scores; 0 for losses and costs."""
    return 0.0 if measure.endswith(".loss") or measure in COSTS else score_step(scores, examples)


def judged(comparisons: Sequence[Comparison], rising: Sequence[str]) -> list[Comparison]:
    """Apply Holm's correction over all comparisons; add intervals, power and verdicts.

    For measures in `rising`, larger is better.
    """
    adjusted = holm([one.p for one in comparisons])
    tests = sum(one.p is not None for one in comparisons)
    needed = next(n for n in range(2, MOST_RANKED) if 2 * tests < LEVEL * math.comb(2 * n, n))  # for an exact rank test
    judgements = []
    for one, p in zip(comparisons, adjusted, strict=True):
        rises, ahead = one.measure in rising, one.ahead
        if not one.by_rank and one.mean is not None:
            ahead = (one.mean > 0) == rises
        one = replace(one, p_holm=p, better=ahead if p is not None and p < LEVEL else None)
        if one.by_rank and one.better is None and one.diverged + one.diverged_against and sum(one.lost) < 2 * one.runs:
            one = replace(one, give=needed if one.runs < needed else 0)
        if p is not None and not one.by_rank:
            one = _with_power(_with_interval(one, LEVEL / tests), LEVEL / tests)
        judgements.append(replace(one, verdict=_verdict(one)))
    return judgements


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
    """Return "held" if the arm's value is significantly smaller. Diverged runs have the worst value."""
    if one.better is None or one.problem:
        return "open"
    return "held" if one.better != rising else "not held"


def _verdict(one: Comparison) -> Verdict:
    if one.problem:
        return "open"
    if one.lost[0] == one.runs > 0:
        return "diverged"
    bounds = (one.low, one.high)
    if one.margin is not None and all(bound is not None and abs(bound) <= one.margin for bound in bounds):
        return "equal"
    if one.better is not None:
        return "better" if one.better else "worse"
    return "open" if one.p is None or one.by_rank else "cannot tell"


def _with_interval(one: Comparison, level: float) -> Comparison:
    """Add the interval at this level, cut at `bounds`; 0 is an end if only a later step of Holm's excludes it."""
    mean, error = one.mean or 0.0, one.error or 0.0
    reach = float(_scipy_stats().t.isf(level / 2, one.freedom)) * error
    low, high = mean - reach, mean + reach
    if one.better is not None:
        low, high = (max(low, 0.0), high) if mean > 0 else (low, min(high, 0.0))
    least, most = one.bounds or [-math.inf, math.inf]
    return replace(one, low=max(low, least), high=min(high, most))


def _with_power(one: Comparison, level: float) -> Comparison:
    """Add the smallest difference with 80 % power at this level, and the seeds that the observed one needs."""
    error, mean, n = one.error or 0.0, abs(one.mean or 0.0), one.n
    arms = max(1, one.freedom // max(1, n - 1))  # degrees of freedom per additional seed

    def is_enough(seeds: int) -> bool:
        return mean / (error * math.sqrt(n / seeds)) >= _shift(arms * (seeds - 1), level)

    seeds = bisect_left(range(MOST_SEEDS + 1), True, 2, key=is_enough)
    return replace(one, seen=error * _shift(one.freedom, level), seeds=seeds if seeds <= MOST_SEEDS else None)


@lru_cache(4096)
def _shift(freedom: int, level: float) -> float:
    """Return the true difference in standard errors that a two-sided t test finds with 80 % power."""
    low, high = 0.0, float(_bounds(freedom, level).max()) + 10.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, 1.0, freedom, level) >= POWER else (middle, high)
    return high


def power(effect: float, error: float, freedom: int, level: float) -> float:
    """Return the probability that a two-sided t test finds a true difference, with its sign."""
    normal = optional("scipy.special", "study", "intervals need").ndtr
    return float(normal(abs(effect) / error - _bounds(freedom, level)).mean())


@lru_cache(4096)
def _bounds(freedom: int, level: float) -> Array:
    """Return quantiles of the least difference that a t test finds, in true standard errors."""
    stats, points = _scipy_stats(), (np.arange(POINTS) + 0.5) / POINTS
    bounds: Array = float(stats.t.isf(level / 2, freedom)) * np.sqrt(stats.chi2.ppf(points, freedom) / freedom)
    return bounds


def half_digit(value: float) -> float:
    """Return half a unit of the last printed digit of a score."""
    return 0.5 * 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS) if value else 0.0


def _scipy_stats() -> Any:
    return optional("scipy.stats", "study", "intervals need")
