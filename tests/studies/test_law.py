"""The law of losses: known numbers are found again, intervals hold as often as they say."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tfkit.core.errors import UsageError
from tfkit.studies.law import NAMES, Law, Point, fitted, law_of, rehearsed

SIZES = (1.2e4, 4.8e4, 1.6e5, 3.3e5)
BUDGETS = (3.84e5, 7.68e5, 1.536e6)
TRUE = {"E": 1.2, "A": 60.0, "a": 0.4, "B": 900.0, "b": 0.55}
LARGEST = (7.9e5, 1.536e6)


def loss(n: float, d: float) -> float:
    return TRUE["E"] + TRUE["A"] / n ** TRUE["a"] + TRUE["B"] / d ** TRUE["b"]


def made(noise: float, generator: np.random.Generator, law=loss) -> list[Point]:
    """Mean losses of all sizes on all budgets, with noise in proportion."""
    return [Point(n, d, law(n, d) * math.exp(noise * generator.normal()), 2) for n, d in product(SIZES, BUDGETS)]


def covered(draws: int, noise: float, seed: int) -> float:
    """How often the prediction interval holds the loss of the largest size, which has the same noise."""
    generator = np.random.default_rng(seed)
    hits = 0
    for _ in range(draws):
        points = made(noise, generator)
        new = loss(*LARGEST) * math.exp(noise * generator.normal())
        hits += fitted(points).prediction(*LARGEST).holds(new)
    return hits / draws


def test_the_numbers_of_a_known_law_are_found_again() -> None:
    fit = fitted(made(1e-6, np.random.default_rng(0)))
    for name in NAMES:
        found = fit.parameter(name)
        assert found.value == pytest.approx(TRUE[name], rel=2e-3), name
        assert found.low is not None and found.high is not None
        assert found.low < found.value < found.high < 1.01 * found.low, name
    assert fit.prediction(*LARGEST).value == pytest.approx(loss(*LARGEST), rel=1e-5)


def test_a_law_without_any_noise_is_certain_of_its_terms() -> None:
    fit = replace(fitted(made(1e-6, np.random.default_rng(0))), squares=0.0)  # as if rounding had left no difference
    assert fit.gain("A") == fit.gain("B") == 0.0
    interval = fit.prediction(*LARGEST)
    assert interval.low == pytest.approx(interval.value) == interval.high


def test_the_prediction_interval_is_student_s_where_the_law_is_nearly_linear() -> None:
    """By the covariance that scipy gives for the same least squares, of noise so small that nothing bends."""
    from scipy.optimize import curve_fit
    from scipy.stats import t as student

    points = made(1e-4, np.random.default_rng(1))
    places = np.array([[one.parameters / 1e5, one.tokens / 1e6] for one in points]).T

    def logarithm(place, e, p, a, q, b):
        return np.log(e + p * place[0] ** -a + q * place[1] ** -b)

    start = (1.2, 60 / 1e5**0.4, 0.4, 900 / 1e6**0.55, 0.55)
    values, covariance = curve_fit(logarithm, places, np.log([one.loss for one in points]), p0=start)
    residuals = logarithm(places, *values) - np.log([one.loss for one in points])
    freedom = len(points) - 5
    new = np.array([[LARGEST[0] / 1e5], [LARGEST[1] / 1e6]])
    steps = np.eye(5) * 1e-6
    slope = np.array(
        [(logarithm(new, *(values + step)) - logarithm(new, *(values - step)))[0] / 2e-6 for step in steps]
    )
    reach = student.ppf(0.975, freedom) * math.sqrt(residuals @ residuals / freedom + slope @ covariance @ slope)
    found = fitted(points).prediction(*LARGEST)
    assert found.low is not None and found.high is not None
    assert math.log(found.high / found.value) == pytest.approx(reach, rel=0.05)
    assert math.log(found.value / found.low) == pytest.approx(reach, rel=0.05)


@pytest.mark.full
def test_the_prediction_interval_holds_nearly_always() -> None:
    """Of 20 draws; fewer than 16 within have a probability of 0.0003 where 95 % are."""
    assert covered(20, 0.004, seed=2) >= 16 / 20


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.002, 0.006])
def test_the_prediction_interval_holds_as_often_as_it_says(noise: float) -> None:
    """95 % of 400 draws, within three of their standard deviations and 1 % for the bend of the law."""
    assert covered(400, noise, seed=3) == pytest.approx(0.95, abs=0.043)


def test_what_no_point_bounds_has_no_end() -> None:
    """Noise as large as the whole fall by tokens: 0 is not excluded for what is below everything."""
    fit = fitted(made(0.05, np.random.default_rng(4)))
    assert fit.parameter("E").low is None


def test_the_optimum_is_where_the_law_is_least() -> None:
    from scipy.optimize import minimize_scalar

    law = Law(tuple(math.log(TRUE[name]) for name in NAMES), 1.0, 1.0)
    flops = 3e13

    def at(log_n: float) -> float:
        return law.loss(math.exp(log_n), flops / 6 / math.exp(log_n))

    by_hand = minimize_scalar(at, bounds=(5, 25), method="bounded", options={"xatol": 1e-8}).x
    assert law.optimum(flops) == pytest.approx(by_hand, abs=1e-4)
    found = fitted(made(1e-5, np.random.default_rng(5))).optimum(flops)
    assert found.value == pytest.approx(math.exp(by_hand), rel=0.02)
    assert found.holds(found.value)


def test_points_that_tell_no_law_are_told() -> None:
    generator = np.random.default_rng(6)
    by_tokens, why = law_of(made(0.004, generator, lambda n, d: 2.0 + 900 / d**0.55))
    assert by_tokens is None
    assert "the loss does not fall with the parameters beyond the noise" in why[0]
    assert "(F test, p " in why[0]
    by_size, why = law_of(made(0.004, generator, lambda n, d: 1.5 + 60 / n**0.4))
    assert by_size is None
    assert "the loss does not fall with the tokens beyond the noise" in why[0]
    rising, why = law_of(made(0.001, generator, lambda n, d: 2.0 + n / 1e6 + d / 1e7))
    assert rising is None
    assert len(why) == 2


def test_too_few_points_are_told() -> None:
    points = made(0.001, np.random.default_rng(7))
    fit, why = law_of([one for one in points if one.parameters < 1e5])
    assert fit is None
    assert why == (
        "the runs have 2 sizes; a law needs 3",
        "there are 6 mean losses; a law of 5 numbers needs 7",
    )
    with pytest.raises(UsageError, match="5 points are too few"):
        fitted(points[:5])
    fit, why = law_of([Point(one.parameters, one.tokens, 0.0) for one in points])
    assert (fit, why) == (None, ("a loss is 0, and the law needs its logarithm",))


def test_a_rehearsal_predicts_the_largest_of_the_fitted_sizes() -> None:
    points = made(0.001, np.random.default_rng(8))
    found = rehearsed(points)
    assert found is not None
    assert (found.point.parameters, found.point.tokens) == (SIZES[-1], BUDGETS[-1])
    assert found.words.endswith("within")
    moved = [
        Point(one.parameters, one.tokens, one.loss * (1.2 if one.parameters == SIZES[-1] else 1)) for one in points
    ]
    again = rehearsed(moved)
    assert again is not None
    assert again.predicted == found.predicted
    assert again.words.endswith("outside")
