"""The law of losses L = E + A / N^a + B / D^b (Hoffmann et al. 2022, arXiv 2203.15556), its fit, and intervals.

N is the number of parameters in the layers, D the number of tokens read.

The fit minimizes the squared differences of log losses from several starts. An interval contains the values that, when
imposed as a constraint or added as another observation, raise the sum of squares by no more than the 95 % quantile of
the F distribution allows. For a linear law, this is the usual t interval; no linear approximation is needed. The
variance is that of the points about the law, including the noise of seeds and the misfit of the law; a bootstrap of a
dozen points would give intervals that are too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfkit.core.errors import UsageError
from tfkit.core.extras import optional
from tfkit.studies.statistics import LEVEL

Vector = NDArray[np.float64]
NAMES = ("E", "A", "a", "B", "b")
LEAST_POINTS = len(NAMES) + 2  # leaves two degrees of freedom
LEAST_VALUES = 3  # distinct values of N, and of D
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6)  # at which fits start
BEST_STARTS = 6
FARTHEST = 12.0  # in log units: beyond a factor of 160,000 an interval is unbounded
TIGHT = 100.0  # weight of a constraint, relative to 1 for an observation


@dataclass(frozen=True)
class Point:
    """Mean loss of the runs of one size on one budget."""

    parameters: float
    tokens: float
    loss: float
    n: int = 1


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval. An end is None if unbounded."""

    value: float
    low: float | None
    high: float | None

    def holds(self, value: float) -> bool:
        """True if the value is in the interval."""
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


@dataclass(frozen=True)
class Law:
    """A law, stored as the logarithms of E, A / n0^a, a, B / d0^b and b; (n0, d0) is the center of the points."""

    logs: tuple[float, ...]
    n0: float
    d0: float

    def terms(self, parameters: Vector | float, tokens: Vector | float) -> tuple[Any, Any, Any]:
        """Return E, A / N^a and B / D^b."""
        e, p, a, q, b = self.logs
        by_parameters = p - _bounded(a) * np.log(parameters / self.n0)
        by_tokens = q - _bounded(b) * np.log(tokens / self.d0)
        return _bounded(e), _bounded(by_parameters), _bounded(by_tokens)

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss for this number of parameters and tokens."""
        return float(sum(self.terms(parameters, tokens)))

    def logarithm(self, name: str) -> float:
        """Return the logarithm of E, A, a, B or b."""
        e, p, a, q, b = self.logs
        logarithms = {"E": e, "A": p + float(_bounded(a)) * math.log(self.n0), "a": a}
        logarithms |= {"B": q + float(_bounded(b)) * math.log(self.d0), "b": b}
        return logarithms[name]

    def value(self, name: str) -> float:
        """Return E, A, a, B or b."""
        return float(_bounded(self.logarithm(name)))

    def optimum(self, flops: float) -> float:
        """Return log N of the minimum loss under 6 N D = flops, where a A / N^a = b B / D^b."""
        a, b = self.value("a"), self.value("b")
        ratio = self.logs[2] + self.logarithm("A") - self.logs[4] - self.logarithm("B")
        return (ratio + b * math.log(flops / 6)) / (a + b)


def _bounded(logarithm: Vector | float) -> Any:
    """Return exp(x), clamped so that the optimizer cannot overflow."""
    return np.exp(np.clip(logarithm, -60.0, 60.0))


@dataclass(frozen=True)
class LawFit:
    """A law with the points that it was fitted to."""

    law: Law
    points: tuple[Point, ...]
    squares: float  # sum of the squared differences of log losses

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return len(self.points) - len(NAMES)

    @property
    def deviation(self) -> float:
        """Standard deviation of the log losses about the law."""
        return math.sqrt(self.squares / self.freedom)

    def parameter(self, name: str) -> Interval:
        """Return E, A, a, B or b with its interval. If the lower end is None, 0 is not excluded."""
        return self._raised(self._interval(lambda law: law.logarithm(name), TIGHT))

    def prediction(self, parameters: float, tokens: float) -> Interval:
        """Predict the mean loss of a new size, averaged over as many seeds as each point, with its interval."""
        return self._raised(self._interval(lambda law: math.log(law.loss(parameters, tokens)), 1.0))

    def optimum(self, flops: float) -> Interval:
        """Return the compute-optimal number of parameters with its interval."""
        return self._raised(self._interval(lambda law: law.optimum(flops), TIGHT))

    def gain(self, name: str) -> float:
        """Return the p-value of an F test against the law without its N term ("A") or its D term ("B")."""
        without = _best(self._data, fixed={"A": (1, 2), "B": (3, 4)}[name])
        lost, noise = max(without.squares - self.squares, 0.0) / 2, self.squares / self.freedom
        if not noise:  # the law fits exactly
            return 0.0 if lost else 1.0
        return float(scipy_module("stats").f.sf(lost / noise, 2, self.freedom))

    @cached_property
    def _data(self) -> PointArrays:
        return PointArrays.of(self.points)

    def _raised(self, logs: Interval) -> Interval:
        low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
        return Interval(math.exp(logs.value), low, high)

    def _interval(self, quantity: Callable[[Law], float], weight: float) -> Interval:
        middle = quantity(self.law)
        most = self.squares / self.freedom * float(scipy_module("stats").f.isf(LEVEL, 1, self.freedom))
        step = max(self.deviation, 1e-9)
        ends = [_end(self, quantity, weight, middle, sign * step, most) for sign in (-1, 1)]
        return Interval(middle, *ends)


@dataclass(frozen=True)
class PointArrays:
    """Points as arrays with their center."""

    parameters: Vector
    tokens: Vector
    logs: Vector
    n0: float
    d0: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointArrays:
        """Convert points to arrays."""
        n, d, losses = (np.array([getattr(one, name) for one in points]) for name in ("parameters", "tokens", "loss"))
        return cls(n, d, np.log(losses), float(np.exp(np.log(n).mean())), float(np.exp(np.log(d).mean())))

    def law(self, logs: Vector) -> Law:
        """Return the law with these logarithms."""
        return Law(tuple(float(one) for one in logs), self.n0, self.d0)

    def residuals(self, law: Law) -> Vector:
        """Return the differences of log losses."""
        found: Vector = np.log(sum(law.terms(self.parameters, self.tokens))) - self.logs
        return found


def fitted(points: Sequence[Point]) -> LawFit:
    """Fit the law by least squares; raise UsageError for fewer points than parameters."""
    if len(points) <= len(NAMES):
        few = f"{len(points)} points are too few to fit them with intervals; add sizes or budgets"
        raise UsageError(f"the law has {len(NAMES)} parameters; {few}")
    best = _best(PointArrays.of(points))
    return LawFit(best.law, tuple(points), best.squares)


@dataclass(frozen=True)
class Solved:
    """Result of a least squares fit."""

    law: Law
    squares: float


def _best(data: PointArrays, fixed: tuple[int, ...] = ()) -> Solved:
    """Return the best fit from several starts; `fixed` terms are held at zero."""
    free = [place for place in range(len(NAMES)) if place not in fixed]
    return min((_solved(data, start, free) for start in _starts(data, fixed)), key=lambda solved: solved.squares)


def _starts(data: PointArrays, fixed: tuple[int, ...]) -> list[Vector]:
    """Return the best starts from a grid of exponents; with fixed exponents, the law is linear in E, A and B >= 0."""
    starts: list[tuple[float, Vector]] = []
    losses = np.exp(data.logs)
    for a, b in product(EXPONENTS, repeat=2):
        columns = [np.ones_like(losses), (data.parameters / data.n0) ** -a, (data.tokens / data.d0) ** -b]
        columns = [column * (place not in fixed) for column, place in zip(columns, (0, 1, 3), strict=True)]
        values, error = scipy_module("optimize").nnls(np.stack(columns, 1) / losses[:, None], np.ones_like(losses))
        e, p, q = np.log(np.maximum(values, 1e-3 * losses.min()))
        logs = np.array([e, p, math.log(a), q, math.log(b)])
        logs[[place for place in fixed if place in (1, 3)]] = -60.0
        starts.append((float(error), logs))
    starts.sort(key=lambda one: one[0])
    return [logs for _, logs in starts[:BEST_STARTS]]


def _solved(
    data: PointArrays, start: Vector, free: Sequence[int], more: Callable[[Law], float] | None = None
) -> Solved:
    """Run least squares from a start. `more` is an additional residual."""

    def whole(chosen: Vector) -> Law:
        logs = np.array(start)
        logs[free] = chosen
        return data.law(logs)

    def residuals(chosen: Vector) -> Vector:
        law = whole(chosen)
        base = data.residuals(law)
        return base if more is None else np.append(base, more(law))

    result = scipy_module("optimize").least_squares(residuals, start[free], method="lm", max_nfev=2000)
    return Solved(whole(result.x), float(2 * result.cost))


def _end(
    fit: LawFit, quantity: Callable[[Law], float], weight: float, middle: float, step: float, most: float
) -> float | None:
    """Find the end of the interval in the direction of `step`, where the sum of squares has grown by `most`."""
    data, free = fit._data, range(len(NAMES))
    nearest = np.array(fit.law.logs)

    def excess(value: float) -> float:
        nonlocal nearest
        solved = _solved(data, nearest, list(free), lambda law: weight * (quantity(law) - value))
        nearest = np.array(solved.law.logs)
        return solved.squares - fit.squares - most

    inner, outer = middle, middle + step
    while excess(outer) < 0:
        if abs(outer - middle) > FARTHEST:
            return None
        inner, outer, step = outer, outer + 1.6 * step, 1.6 * step
    nearest = np.array(fit.law.logs)
    for _ in range(40):
        centre = (inner + outer) / 2
        inner, outer = (inner, centre) if excess(centre) > 0 else (centre, outer)
        if abs(outer - inner) < 1e-4 * abs(outer - middle):
            break
    return (inner + outer) / 2


@dataclass(frozen=True)
class Rehearsal:
    """Prediction of the largest fitted size from the smaller sizes."""

    predicted: Interval
    point: Point

    @property
    def words(self) -> str:
        """Result as text."""
        inside = "within" if self.predicted.holds(self.point.loss) else "outside"
        return f"predicted {shown(self.predicted)}, measured {self.point.loss:.4g}: {inside}"


def law_of(points: Sequence[Point]) -> tuple[LawFit | None, tuple[str, ...]]:
    """Fit the law. Return None and the reasons if the points do not determine it."""
    reasons = []
    for name, values in (("sizes", {one.parameters for one in points}), ("budgets", {one.tokens for one in points})):
        if len(values) < LEAST_VALUES:
            reasons.append(f"the runs have {len(values)} {name}; a law needs {LEAST_VALUES}")
    if len(points) < LEAST_POINTS:
        reasons.append(f"there are {len(points)} mean losses; a law of {len(NAMES)} numbers needs {LEAST_POINTS}")
    if any(one.loss <= 0 for one in points):
        reasons.append("a loss is 0, and the law needs its logarithm")
    if reasons:
        return None, tuple(reasons)
    fit = fitted(points)
    for term, name in (("A", "parameters"), ("B", "tokens")):
        p = fit.gain(term)
        if p >= LEVEL:
            amounts = [float(getattr(one, name)) for one in points]
            ends = [_mean(points, amounts, most(amounts)) for most in (min, max)]
            text = f"the loss does not fall with the {name} beyond the noise: it is {ends[0]:.4g} with the fewest and "
            reasons.append(f"{text}{ends[1]:.4g} with the most of them (F test, p {p:.2g})")
    return (None if reasons else fit), tuple(reasons)


def _mean(points: Sequence[Point], amounts: Sequence[float], amount: float) -> float:
    chosen = [one.loss for one, own in zip(points, amounts, strict=True) if own == amount]
    return sum(chosen) / len(chosen)


def rehearsed(points: Sequence[Point]) -> Rehearsal | None:
    """Predict the largest of these sizes on the most tokens from the smaller ones; None without a law."""
    most = max(one.parameters for one in points)
    last = max((one for one in points if one.parameters == most), key=lambda one: one.tokens)
    fit, _ = law_of([one for one in points if one.parameters < most])
    return None if fit is None else Rehearsal(fit.prediction(last.parameters, last.tokens), last)


def shown(one: Interval, form: str = ".4g") -> str:
    """Format a value with its interval; a missing end is 0, or "no bound"."""
    low = "0" if one.low is None else format(one.low, form)
    high = "no bound" if one.high is None else format(one.high, form)
    return f"{one.value:{form}} [{low}, {high}]"


def scipy_module(name: str) -> Any:
    """Import a module of scipy; raise UsageError with the install command if it is missing."""
    return optional(f"scipy.{name}", "study", "to fit a law needs")
