import math

import pytest
from pydantic import ValidationError

from tfkit.core.registry import REGISTRY

from ..sampling import looped


def make(name, **options):
    return REGISTRY.get("schedule", name).Config.model_validate(options).build()


def test_the_papers_formula():
    schedule = make("inverse_square_root")
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert schedule.lr(step, 100_000, 512) == pytest.approx(expected, rel=1e-12)
    assert make("inverse_square_root", factor=2.0).lr(7, 9, 64) == pytest.approx(
        2 * make("inverse_square_root").lr(7, 9, 64)
    )


def test_peak_is_reached_where_the_warmup_ends():
    schedule = make("inverse_square_root", peak=3e-4, warmup=100)
    assert schedule.lr(100, 1000, 512) == pytest.approx(3e-4)
    assert schedule.lr(50, 1000, 512) == pytest.approx(1.5e-4)
    assert schedule.lr(400, 1000, 64) == pytest.approx(1.5e-4)


def test_one_way_to_say_the_height():
    with pytest.raises(ValidationError, match=r"factor \(2\) and peak \(0.001\) both set .*; use one"):
        make("inverse_square_root", factor=2.0, peak=1e-3)
    with pytest.raises(ValidationError):
        make("inverse_square_root", warmup=0)


@pytest.mark.parametrize(("name", "middle"), [("linear", 0.55), ("cosine", 0.55)])
def test_from_the_peak_to_the_end(name, middle):
    schedule = make(name, lr=1.0, warmup=10, final=0.1)
    assert [schedule.lr(step, 110, 8) for step in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])
    assert schedule.lr(60, 110, 8) == pytest.approx(middle)
    assert schedule.lr(110, 110, 8) == pytest.approx(0.1)
    rates = [schedule.lr(step, 110, 8) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)


def test_cosine_is_flat_at_both_ends():
    cosine, linear = make("cosine", lr=1.0), make("linear", lr=1.0)
    assert cosine.lr(10, 100, 8) > linear.lr(10, 100, 8) and cosine.lr(90, 100, 8) < linear.lr(90, 100, 8)
    assert cosine.lr(25, 100, 8) == pytest.approx((1 + math.sqrt(0.5)) / 2)


def test_constant():
    schedule = make("constant", lr=0.2, warmup=4)
    assert [schedule.lr(step, 9, 8) for step in (1, 2, 4, 5, 9)] == pytest.approx([0.05, 0.1, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_what_does_not_fit_together(name):
    with pytest.raises(ValidationError, match=r"final \(0.2\) is higher than lr \(0.1\)"):
        make(name, lr=0.1, final=0.2)
    short = make(name, lr=0.1, warmup=100)
    assert [short.lr(step, 20, 8) for step in (1, 20)] == pytest.approx([0.001, 0.02])


@looped("options", [{}, {"lr": 0}, {"lr": -1.0}, {"lr": "1e-3"}, {"lr": 0.1, "warmup": -1}, {"lr": 1, "peek": 2}])
def test_wrong_options(options):
    for name in ("constant", "linear", "cosine"):
        with pytest.raises(ValidationError):
            make(name, **options)


@pytest.mark.parametrize(("shape", "half"), [("linear", 0.5), ("sqrt", 1 - 0.5**0.5)])
def test_all_but_the_last_steps_have_one_rate(shape, half):
    schedule = make("warmup_stable_decay", lr=1.0, warmup=10, decay=0.2, shape=shape)
    rates = [schedule.lr(step, 100, 8) for step in range(1, 101)]
    assert rates[4] == pytest.approx(0.5) and set(rates[9:80]) == {1.0}
    assert rates[89] == pytest.approx(half) and rates[99] == pytest.approx(0)
