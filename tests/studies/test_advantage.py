"""The advantage of a variant as a factor of compute: on losses with a known factor, and how often intervals hold."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from tfkit.studies.advantage import LossPair, advantage_of
from tfkit.studies.law import Point

pytestmark = pytest.mark.full

LARGEST = (1e6, 1e6)


def loss(parameters: float, tokens: float, factor: float = 1.0) -> float:
    """The loss of a law with so many times the compute."""
    return 1.2 + 60 / (parameters * math.sqrt(factor)) ** 0.4 + 900 / (tokens * math.sqrt(factor)) ** 0.55


def pairs(generator: np.random.Generator, noise: float, shared: float = 0.0, growth: float = 0.0) -> Iterator[LossPair]:
    """Losses of three sizes on three budgets: the variant is worth 1.3 times the compute at the largest size."""
    for n in (2e4, 6e4, 2e5):
        for d in (2.5e5, 5e5, 1e6):
            both = math.exp(shared * generator.normal())
            ours, theirs = (both * math.exp(noise * generator.normal()) for _ in range(2))
            yield LossPair(Point(n, d, loss(n, d) * ours), loss(n, d, factor(n, growth)) * theirs)


def factor(parameters: float, growth: float) -> float:
    return 1.3 * (parameters / LARGEST[0]) ** growth


def covered(draws: int, noise: float, shared: float, growth: float, seed: int) -> tuple[float, float]:
    """Shares of draws in which the factor, and the ratio of losses that is then measured, are in their intervals."""
    generator, factors, ratios = np.random.default_rng(seed), 0, 0
    for _ in range(draws):
        fit = advantage_of(list(pairs(generator, noise, shared, growth)))
        assert fit is not None
        factors += fit.factor(LARGEST[0]).holds(1.3)
        measured = loss(*LARGEST, 1.3) / loss(*LARGEST) * math.exp(noise * math.sqrt(2) * generator.normal())
        ratios += fit.ratio(*LARGEST).holds(measured)
    return factors / draws, ratios / draws


def test_a_known_factor_is_recovered() -> None:
    fit = advantage_of(list(pairs(np.random.default_rng(0), 1e-6, growth=0.1)))
    assert fit is not None
    assert fit.factor(LARGEST[0]).value == pytest.approx(1.3, rel=1e-3)
    assert fit.factor(2e4).value == pytest.approx(factor(2e4, 0.1), rel=1e-3)
    assert fit.growth().value == pytest.approx(2**0.1, rel=1e-3)
    assert fit.ratio(*LARGEST).value == pytest.approx(loss(*LARGEST, 1.3) / loss(*LARGEST), rel=1e-4)
    assert fit.worth(fit.ratio(*LARGEST).value, *LARGEST) == pytest.approx(1.3, rel=1e-3)
    assert fit.factor(LARGEST[0], 1.3).value == pytest.approx(1.0, rel=1e-3)  # it costs what it is worth
    assert fit.worth(10.0, *LARGEST) is None


def test_noise_widens_the_interval_and_shared_noise_does_not() -> None:
    widths = []
    for noise, shared in ((0.001, 0.0), (0.004, 0.0), (0.001, 0.004)):
        fit = advantage_of(list(pairs(np.random.default_rng(1), noise, shared)))
        assert fit is not None
        found = fit.factor(LARGEST[0])
        assert found.holds(1.3) and found.low is not None and found.high is not None
        widths.append(math.log(found.high / found.low))
    assert widths[1] > 2.5 * widths[0]
    assert widths[2] < 0.7 * widths[1]


def test_too_few_pairs_have_no_advantage() -> None:
    some = list(pairs(np.random.default_rng(2), 0.001))
    assert advantage_of(some[:6]) is None
    assert advantage_of([*some[:8], LossPair(some[8].recipe, 0.0)]) is None


def test_the_intervals_hold_nearly_always() -> None:
    """Of 12 draws; fewer than 9 within have a probability of 0.002 where 95 % are."""
    assert min(covered(12, 0.002, 0.004, 0.0, seed=3)) >= 9 / 12


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "shared", "growth"), [(0.002, 0.004, 0.0), (0.004, 0.0, 0.1)])
def test_the_intervals_hold_as_often_as_they_say(noise: float, shared: float, growth: float) -> None:
    """95 % of 400 draws, within three of their standard deviations and 1 % for the bend of the law."""
    assert covered(400, noise, shared, growth, seed=4) == pytest.approx((0.95, 0.95), abs=0.043)
