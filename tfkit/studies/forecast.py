"""The forecast of a ladder: the loss of the largest size predicted from the smaller ones before it is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RunError
from tfkit.storage.files import read_json, write_json
from tfkit.studies.board import Board
from tfkit.studies.ladder import LOSS, LadderPlan
from tfkit.studies.law import NAMES, Interval, Point
from tfkit.studies.law_fit import LawFit, fitted
from tfkit.studies.plan import PlannedRun
from tfkit.studies.statistics import LEVEL

FORECAST = "prediction.json"
LEAST_POINTS = len(NAMES) + 2  # two degrees of freedom
LEAST_VALUES = 3  # distinct values of N, and of D


@dataclass(frozen=True)
class Forecast:
    """Predicted mean loss of the largest size with its 95 % interval, and the data used."""

    size: str
    parameters: int
    tokens: float
    seeds: tuple[int, ...]
    predicted: Interval
    made_at: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Rehearsal:
    """The largest fitted size, predicted from the smaller ones."""

    predicted: Interval
    point: Point

    @property
    def words(self) -> str:
        """The result as text."""
        inside = "within" if self.predicted.holds(self.point.loss) else "outside"
        return f"predicted {shown(self.predicted)}, measured {self.point.loss:.4g}: {inside}"


def points_of(plan: LadderPlan, folder: Path) -> tuple[Point, ...]:
    """Return the mean loss of each fitted size on each budget over all seeds that did not diverge."""
    board = Board(plan, folder)
    found = []
    for arm in plan.arms[:-1]:
        runs = [run for seed in plan.seeds if LOSS in board.scores(run := PlannedRun(arm.name, seed))]
        if not runs:
            continue
        losses = [board.scores(run)[LOSS] for run in runs]
        tokens = [history.tokens for run in runs if (history := board.history(run)) is not None]
        mean = sum(losses) / len(losses)
        found.append(Point(plan.size(arm).parameters, sum(tokens) / len(tokens), mean, len(losses)))
    return tuple(found)


def law_of(points: Sequence[Point]) -> tuple[LawFit | None, tuple[str, ...]]:
    """Fit the law; None with the reasons if the points do not determine it."""
    reasons = []
    for name, values in (("sizes", {one.parameters for one in points}), ("budgets", {one.tokens for one in points})):
        if len(values) < LEAST_VALUES:
            reasons.append(f"the runs have {len(values)} {name}; a law needs {LEAST_VALUES}")
    if len(points) < LEAST_POINTS:
        reasons.append(f"there are {len(points)} mean losses; a law of {len(NAMES)} numbers needs {LEAST_POINTS}")
    if any(one.loss <= 0 for one in points):
        reasons.append("a loss is 0: there is nothing left to learn")
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


def foreseen(plan: LadderPlan, folder: Path, fit: LawFit) -> Forecast:
    """Return the saved forecast of a ladder, or compute and save one.

    Raises RunError if the largest size has already been trained without a saved forecast.
    """
    if (folder / FORECAST).exists():
        return read_forecast(folder)
    board, arm = Board(plan, folder), plan.held_out
    begun = [run.name for seed in plan.seeds if board.run_folder(run := PlannedRun(arm.name, seed)).path.exists()]
    if begun:
        text = f"{folder / FORECAST}: is missing, and {begun[0]} has begun: nothing can be predicted any more"
        raise RunError(f"{text}; move the runs of {arm.name} away")
    size = plan.size(arm)
    tokens = max(one.tokens for one in fit.points)  # equal steps on the same data
    predicted = fit.prediction(size.parameters, tokens)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    found = Forecast(size.name, size.parameters, tokens, plan.seeds, predicted, now, fit.points)
    write_json(folder / FORECAST, TypeAdapter(Forecast).dump_python(found, mode="json"))
    return found


def read_forecast(folder: Path) -> Forecast:
    """Read the saved forecast; raise RunError if it is invalid."""
    try:
        return TypeAdapter(Forecast).validate_python(read_json(folder / FORECAST))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{folder / FORECAST}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


def held_out_losses(plan: LadderPlan, folder: Path) -> dict[int, float]:
    """Return the losses of the largest size by seed."""
    board = Board(plan.only(plan.held_out), folder)
    scores = {seed: board.scores(PlannedRun(plan.held_out.name, seed)) for seed in plan.seeds}
    return {seed: found[LOSS] for seed, found in scores.items() if LOSS in found}


def verdict_of(forecast: Forecast, losses: Sequence[float]) -> str:
    """Describe whether the measured loss is within the interval."""
    if not losses:
        return "open: the largest size has no loss"
    mean = math.fsum(losses) / len(losses)
    inside = "within" if forecast.predicted.holds(mean) else "outside"
    away = mean / forecast.predicted.value - 1
    text = f"{inside} the interval: predicted {shown(forecast.predicted)}, measured {mean:.4g} ({away:+.2%})"
    return f"{text}, mean of {len(losses)} seed{'s' * (len(losses) != 1)}"


def shown(one: Interval, form: str = ".4g") -> str:
    """Format a value with its interval; a missing end is 0, or "no bound"."""
    low = "0" if one.low is None else format(one.low, form)
    high = "no bound" if one.high is None else format(one.high, form)
    return f"{one.value:{form}} [{low}, {high}]"
