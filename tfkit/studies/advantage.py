"""A variant's advantage in units of compute: the factor by which the recipe's compute has to grow to reach its loss.

With N parameters and D tokens, the recipe has the loss L(N, D) of its law, and the variant L(N sqrt(g), D sqrt(g)): it
is worth g times the compute 6 N D. log g is linear in log N. Law and advantage are fitted together by least squares to
the means and differences of the log losses of both sides, each weighted by its own variance: runs with the same seed
read the same data, so that differences have less noise. Intervals are Student's, with the degrees of freedom of the
differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from tfkit.studies.law import NAMES, Interval, Law, Point, PointArrays, Vector, fitted, scipy_module
from tfkit.studies.statistics import LEVEL

LEAST_PAIRS = len(NAMES) + 2
PLACES = 2  # numbers of the advantage: log g at the center, and its slope
TINY = 1e-9  # least standard deviation
ROUNDS = 4  # of weighting
STEP = 1e-5  # of numerical derivatives


@dataclass(frozen=True)
class LossPair:
    """Mean losses of the recipe and a variant at one size on one budget."""

    recipe: Point
    loss: float


@dataclass(frozen=True)
class AdvantageFit:
    """Law with the advantage of a variant: the logarithms of the law, log g at the center, and its slope by log N."""

    numbers: Vector
    covariance: Vector
    pairs: tuple[LossPair, ...]
    deviation: float  # standard deviation of the differences of log losses about the fit
    data: PointArrays

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the differences."""
        return len(self.pairs) - PLACES

    def factor(self, parameters: float, work: float = 1.0) -> Interval:
        """Return the factor of compute that the variant is worth at a size; `work` is its own factor of FLOPs."""
        shift = math.log(work)
        return _raised(self._interval(lambda one: float(_log_advantage(one, self.data, parameters)) - shift))

    def growth(self) -> Interval:
        """Return the factor by which the advantage grows with each doubling of N."""
        return _raised(self._interval(lambda one: float(one[-1]) * math.log(2)))

    def ratio(self, parameters: float, tokens: float) -> Interval:
        """Return the ratio of the variant's mean loss to the recipe's at a new size, with its prediction interval."""
        return _raised(
            self._interval(lambda one: _log_ratio(one, self.data, parameters, tokens), extra=self.deviation**2)
        )

    def worth(self, ratio: float, parameters: float, tokens: float, work: float = 1.0) -> float | None:
        """Return the factor of compute of a measured ratio of losses by the law; None beyond a factor of 1,000."""
        law, most = self.data.law(self.numbers[: len(NAMES)]), math.log(1000)

        def excess(log_g: float) -> float:
            ends = (_log_loss(law, parameters, tokens, one) for one in (log_g, 0.0))
            return float(next(ends) - next(ends)) - math.log(ratio)

        if excess(-most) * excess(most) > 0:
            return None
        return math.exp(float(scipy_module("optimize").brentq(excess, -most, most))) / work

    @cached_property
    def _quantile(self) -> float:
        return float(scipy_module("stats").t.isf(LEVEL / 2, self.freedom))

    def _interval(self, quantity: Callable[[Vector], float], extra: float = 0.0) -> Interval:
        middle, ends = quantity(self.numbers), (self.numbers + _steps(), self.numbers - _steps())
        slope = np.array([quantity(up) - quantity(down) for up, down in zip(*ends, strict=True)]) / (2 * STEP)
        reach = self._quantile * math.sqrt(max(0.0, float(slope @ self.covariance @ slope)) + extra)
        return Interval(middle, middle - reach, middle + reach)


def advantage_of(pairs: Sequence[LossPair]) -> AdvantageFit | None:
    """Fit a variant's advantage; None for too few pairs."""
    if len(pairs) < LEAST_PAIRS or any(min(one.loss, one.recipe.loss) <= 0 for one in pairs):
        return None
    points = [one.recipe for one in pairs]
    data, losses = PointArrays.of(points), np.log([one.loss for one in pairs])
    numbers: Vector = np.array([*fitted(points).law.logs, 0.0, 0.0])
    deviations = (1.0, 1.0)
    for _ in range(ROUNDS):
        residuals = partial(_residuals, data=data, losses=losses, deviations=deviations)
        numbers = np.asarray(
            scipy_module("optimize").least_squares(residuals, numbers, method="lm", max_nfev=4000).x, float
        )
        deviations = _deviations(residuals(numbers), deviations)
    final = partial(_residuals, data=data, losses=losses, deviations=deviations)
    slopes = np.stack([(final(numbers + step) - final(numbers - step)) / (2 * STEP) for step in _steps()], 1)
    covariance: Vector = np.asarray(np.linalg.pinv(slopes.T @ slopes, rcond=1e-12, hermitian=True), float)
    return AdvantageFit(numbers, covariance, tuple(pairs), deviations[1], data)


def _residuals(numbers: Vector, data: PointArrays, losses: Vector, deviations: tuple[float, float]) -> Vector:
    """Return the residuals of the mean log losses and of their differences, in standard deviations."""
    law, log_g = data.law(numbers[: len(NAMES)]), _log_advantage(numbers, data, data.parameters)
    own, other = (_log_loss(law, data.parameters, data.tokens, one) for one in (0.0, log_g))
    means = (own + other - data.logs - losses) / 2
    return np.concatenate([means / deviations[0], (other - own - losses + data.logs) / deviations[1]])


def _deviations(residuals: Vector, before: tuple[float, float]) -> tuple[float, float]:
    """Return the standard deviations of both blocks of residuals, which were divided by `before`."""
    count = len(residuals) // 2
    blocks = zip((residuals[:count], residuals[count:]), (len(NAMES), PLACES), before, strict=True)
    first, second = (
        max(TINY, scale * math.sqrt(float(block @ block) / max(1, count - taken))) for block, taken, scale in blocks
    )
    return first, second


def _log_advantage(numbers: Vector, data: PointArrays, parameters: Vector | float) -> Vector:
    """Return log g at these numbers of parameters."""
    return np.asarray(numbers[-2] + numbers[-1] * np.log(parameters / data.n0))


def _log_loss(law: Law, parameters: Vector | float, tokens: Vector | float, log_g: Vector | float) -> Vector:
    """Return the log loss of the law with exp(log_g) times the compute."""
    scale = np.exp(np.clip(log_g, -20.0, 20.0) / 2)
    return np.asarray(np.log(sum(law.terms(parameters * scale, tokens * scale))))


def _log_ratio(numbers: Vector, data: PointArrays, parameters: float, tokens: float) -> float:
    """Return the log ratio of the variant's loss to the recipe's."""
    law, log_g = data.law(numbers[: len(NAMES)]), _log_advantage(numbers, data, parameters)
    return float(_log_loss(law, parameters, tokens, log_g) - _log_loss(law, parameters, tokens, 0.0))


def _steps() -> Vector:
    return STEP * np.eye(len(NAMES) + PLACES)


def _raised(logs: Interval) -> Interval:
    low, high = (None if end is None else math.exp(min(end, 700.0)) for end in (logs.low, logs.high))
    return Interval(math.exp(logs.value), low, high)
