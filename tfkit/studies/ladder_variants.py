"""Compared variants of a ladder: their advantage by size, its prediction at the largest size, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfkit.studies.advantage import LEAST_PAIRS, AdvantageFit, LossPair, advantage_of
from tfkit.studies.ladder import LOSS, LadderPlan
from tfkit.studies.law import Interval, Point, shown
from tfkit.studies.results import ArmResult


@dataclass(frozen=True)
class VariantForecast:
    """Predictions for a variant at the largest size: its worth in compute, and the ratio of its loss to the recipe's.

    `factor` has the interval of the advantage itself, `ratio` that of a measurement.
    """

    variant: str
    factor: Interval
    ratio: Interval

    def words(self, plan: LadderPlan) -> str:
        """Return the prediction as text."""
        text = f"predicted to be worth {shown(self.factor, '.3g')} times the FLOPs of {plan.name}"
        return f"{plan.sizes[-1].name}, {self.variant}: {text}; ratio of losses {shown(self.ratio, '.4f')}"


@dataclass(frozen=True)
class VariantResult:
    """A variant of a ladder: its fit, None with a reason if there is none, and its measured ratio of losses."""

    plan: LadderPlan
    variant: str
    fit: AdvantageFit | None
    reason: str
    measured: float | None  # at the largest size, over the seeds that both sides have
    tokens: float  # of the largest size

    @property
    def forecast(self) -> VariantForecast | None:
        """Prediction at the largest size."""
        if self.fit is None:
            return None
        largest = self.plan.sizes[-1].parameters
        ratio = self.fit.ratio(largest, self.tokens)
        return VariantForecast(self.variant, self.fit.factor(largest, self._work(-1)), ratio)

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each size: variant, size, N, and the factor of compute with its interval."""
        for place, size in enumerate(self.plan.sizes if self.fit is not None else ()):
            factor = "" if self.fit is None else shown(self.fit.factor(size.parameters, self._work(place)), ".3g")
            name = f"{size.name}, held out" if size is self.plan.sizes[-1] else size.name
            yield [self.variant, name, f"{size.parameters:,}", factor]

    def lines(self, forecast: VariantForecast | None) -> Iterator[str]:
        """Describe the advantage by size, and the verdict on the saved forecast."""
        if self.fit is None:
            yield f"{self.variant}: no advantage by size: {self.reason}"
            return
        sizes, most = self.plan.sizes, self.fit.factor(self.plan.sizes[-2].parameters, self._work(-2))
        least = self.fit.factor(sizes[0].parameters, self._work(0))
        text = f"worth {shown(least, '.3g')} times the FLOPs of {self.plan.name} at {sizes[0].name} and "
        text += f"{shown(most, '.3g')} times at {sizes[-2].name}; each doubling of N multiplies it by "
        yield f"{self.variant}: {text}{shown(self.fit.growth(), '.3g')}"
        if forecast is not None:
            yield f"{sizes[-1].name}, {self.variant}: {self._verdict(self.fit, forecast)}"

    def as_data(self) -> dict[str, object]:
        """Return the entry of ladder.json."""
        names = ("variant", "size", "parameters", "factor")
        rows = [dict(zip(names, row, strict=True)) for row in self.rows()]
        return {"variant": self.variant, "no_advantage": self.reason, "sizes": rows, "measured_ratio": self.measured}

    def _verdict(self, fit: AdvantageFit, forecast: VariantForecast) -> str:
        if self.measured is None:
            return "open: the largest size has no loss of both"
        inside = "within" if forecast.ratio.holds(self.measured) else "outside"
        worth = fit.worth(self.measured, self.plan.sizes[-1].parameters, self.tokens, self._work(-1))
        text = "beyond a factor of 1,000" if worth is None else f"worth {worth:.3g} times the FLOPs"
        predicted = f"predicted a ratio of losses of {shown(forecast.ratio, '.4f')}"
        return f"{inside} the interval: {predicted}, measured {self.measured:.4f}, {text}"

    def _work(self, place: int) -> float:
        """Return the FLOPs of the variant's token by those of the recipe's at a size."""
        return self.plan.compared[self.variant][place].flops / max(1, self.plan.sizes[place].flops)


def variant_results(plan: LadderPlan, arms: Sequence[ArmResult], problem: str = "") -> tuple[VariantResult, ...]:
    """Return the result of each compared variant; with a `problem` in the runs, without a fit."""
    by_name, found = {arm.name: arm for arm in arms}, []
    for variant in plan.compared:
        pairs = []
        for arm in plan.fitted:
            ours = by_name[plan.arm_like(arm, variant).name]
            losses = _common(by_name[arm.name], ours)
            if losses is not None:
                read = next(cell.tokens for cell in ours.cells if cell.tokens)
                pairs.append(LossPair(Point(plan.size(arm).parameters, read, losses[0]), losses[1]))
        fit = None if problem else advantage_of(pairs)
        few = f"{len(pairs)} pairs of losses; {LEAST_PAIRS} are needed"
        last = _common(by_name[plan.held_out.name], by_name[plan.arm_like(plan.held_out, variant).name])
        measured = None if last is None else last[1] / last[0]
        tokens = max((pair.recipe.tokens for pair in pairs), default=0.0)
        found.append(VariantResult(plan, variant, fit, "" if fit else problem or few, measured, tokens))
    return tuple(found)


def _common(one: ArmResult, other: ArmResult) -> tuple[float, float] | None:
    """Return the mean losses of two arms over the seeds that both have; None without any."""
    sides = [{cell.seed: cell.scores[LOSS] for cell in arm.cells if LOSS in cell.scores} for arm in (one, other)]
    seeds = sides[0].keys() & sides[1].keys()
    if not seeds:
        return None
    first, second = (math.fsum(side[seed] for seed in seeds) / len(seeds) for side in sides)
    return first, second
