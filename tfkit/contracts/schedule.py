"""Schedules: pure functions from step to learning rate."""

from __future__ import annotations

import math

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.training.schedule import Schedule

SCHEDULE = ("schedule",)
WIDTHS = (16, 1024)
TOTALS = (1, 2, 50, 5000)


def rates(schedule: Schedule, total: int, d_model: int) -> list[float]:
    """Return the learning rates of all steps."""
    return [schedule.lr(step, total, d_model) for step in range(1, total + 1)]


@contract("learning rates are finite, non-negative and not all zero", "built", slots=SCHEDULE, every_option=True)
def check_rates(case: Case) -> None:
    """Compute the learning rates for few and many steps, and for narrow and wide models."""
    schedule: Schedule = case.config.build()
    for total in TOTALS:
        for d_model in WIDTHS:
            lrs = rates(schedule, total, d_model)
            for step, rate in enumerate(lrs, 1):
                good = isinstance(rate, (int, float)) and math.isfinite(rate) and rate >= 0
                expect(good, f"step {step} of {total} has the learning rate {rate}")
            expect(total < TOTALS[-1] or any(lrs), f"all {total} steps have the learning rate 0")


@contract("the learning rate of a step depends only on its number", "rates", slots=SCHEDULE, every_option=True)
def check_pure(case: Case) -> None:
    """Compute the learning rates in reverse order, and with a second schedule, as a resumed run does."""
    schedule, total, d_model = case.config.build(), TOTALS[2], WIDTHS[0]
    lrs = rates(schedule, total, d_model)
    for step, rate in reversed([*enumerate(lrs, 1)]):
        again = schedule.lr(step, total, d_model)
        expect(again == rate, f"step {step} has the learning rate {rate:g} at first, but {again:g} in a second call")
        resumed = case.config.build().lr(step, total, d_model)
        expect(resumed == rate, f"a run resumed at step {step} has the learning rate {resumed:g}, not {rate:g}")
