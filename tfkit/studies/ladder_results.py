"""Results of a ladder: the law fitted to its runs so far, the forecast of the largest size, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from glob import escape
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RunError
from tfkit.storage.files import read_json, write_json
from tfkit.studies.arms import slug
from tfkit.studies.ladder import LOSS, LadderPlan
from tfkit.studies.ladder_variants import VariantForecast, VariantResult, variant_results
from tfkit.studies.law import NAMES, Interval, LawFit, Point, Rehearsal, law_of, rehearsed, shown
from tfkit.studies.page import environment_of
from tfkit.studies.plan import RUNS
from tfkit.studies.results import ArmResult, arm_results
from tfkit.training.folder import RunFolder

FORMAT = 1
FORECAST = "prediction.json"
WIDEST = 100.0  # maximum ratio of the ends of the interval of N: beyond it the optimum is meaningless


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
    variants: tuple[VariantForecast, ...] = ()


@dataclass(frozen=True)
class LadderResults:
    """All runs of a ladder with the fitted law and the forecast."""

    plan: LadderPlan
    arms: tuple[ArmResult, ...]  # as in the plan
    points: tuple[Point, ...]
    fit: LawFit | None
    reasons: tuple[str, ...]
    rehearsal: Rehearsal | None
    forecast: Forecast | None
    flops: float  # compute budget of the optimum
    environment: Sequence[tuple[str, str]]
    failed: Mapping[str, str]
    altered: Mapping[str, str]  # why the files of these runs are not trusted
    variants: tuple[VariantResult, ...] = ()

    @property
    def losses(self) -> dict[int, float]:
        """Losses of the largest size by seed."""
        return {cell.seed: cell.scores[LOSS] for cell in self.arms[-1].cells if LOSS in cell.scores}

    @property
    def runs(self) -> Iterator[dict[str, object]]:
        """Row for each run."""
        for arm, result in zip(self.plan.arms, self.arms, strict=True):
            size = self.plan.size(arm)
            known = {"arm": arm.name, "size": size.name, "parameters": size.parameters, "flops": self.plan.flops(arm)}
            for cell in result.cells:
                own = {"tokens": cell.tokens or None, "state": cell.state, "loss": cell.scores.get(LOSS)}
                yield {**known, "seed": cell.seed, **own}

    @property
    def verdict(self) -> str:
        """Outcome of the prediction."""
        return "" if self.forecast is None else verdict_of(self.forecast, list(self.losses.values()))

    @cached_property
    def law(self) -> dict[str, Interval]:
        """E, A, a, B and b with their intervals; empty without a law."""
        return {} if self.fit is None else {name: self.fit.parameter(name) for name in NAMES}

    @cached_property
    def optimum(self) -> tuple[Interval, Interval] | None:
        """Compute-optimal N and D; None if an exponent is unbounded or N is too uncertain."""
        if self.fit is None:
            return None
        parameters = self.fit.optimum(self.flops)
        ends = [self.law["a"], self.law["b"], parameters]
        if any(end is None for one in ends for end in (one.low, one.high)):
            return None
        if parameters.high is None or parameters.low is None or parameters.high > WIDEST * parameters.low:
            return None
        tokens = [self.flops / 6 / (one or 1.0) for one in (parameters.value, parameters.high, parameters.low)]
        return parameters, Interval(*tokens)

    def law_lines(self) -> Iterator[str]:
        """Describe the law."""
        if self.fit is None:
            return
        numbers = ", ".join(f"{name} = {shown(one, '.3g')}" for name, one in self.law.items())
        ending = f"{len(self.points)} means, standard deviation about the law {self.fit.deviation:.2%}"
        yield f"L = E + A / N^a + B / D^b: {numbers}; {ending}"
        if self.rehearsal is not None:
            yield f"rehearsal, the largest of the fitted sizes by those below it: {self.rehearsal.words}"
        else:
            yield "no rehearsal: the sizes below the largest of the fitted ones do not determine a law"
        forecasts = {} if self.forecast is None else {one.variant: one for one in self.forecast.variants}
        for variant in self.variants:
            yield from variant.lines(forecasts.get(variant.variant))
        best = self.optimum
        if best is None:
            yield f"compute-optimal N and D for {self.flops:.2e} FLOPs: not determined by these runs"
            return
        seen = (self.plan.sizes[0].parameters, self.plan.sizes[-1].parameters)
        beyond = "" if seen[0] <= best[0].value <= seen[1] else "; beyond the sizes that were trained"
        optimum = f"N = {shown(best[0], '.2e')}, D = {shown(best[1], '.2e')}"
        yield f"compute-optimal for {self.flops:.2e} FLOPs (6 N D): {optimum}{beyond}"

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each size and budget: n, mean, standard deviation over seeds, and the law's value."""
        for arm, result in zip(self.plan.arms, self.arms, strict=True):
            spread, size = result.spread(LOSS), self.plan.size(arm)
            tokens = next((cell.tokens for cell in result.cells if cell.tokens), self.plan.tokens(arm))
            is_other = self.fit is None or arm.name in self.plan.variant_of
            law = "" if self.fit is None or is_other else f"{self.fit.law.loss(size.parameters, tokens):.4g}"
            losses = ["0", "", ""] if spread is None else [str(spread.n), f"{spread.mean:.4g}", f"{spread.sd or 0:.2g}"]
            losses[2] = "" if spread is None or spread.sd is None else losses[2]
            name = f"{size.name}, held out" if arm in self.plan.last else size.name
            yield [name, f"{size.parameters:,}", f"{tokens:,.0f}", f"{self.plan.flops(arm):.2e}", *losses, law]

    def as_data(self) -> dict[str, object]:
        """Return the contents of ladder.json."""
        best = self.optimum
        fit = self.fit
        return {
            "format": FORMAT,
            "ladder": self.plan.name,
            "sizes": [asdict(size) | {"values": dict(size.values)} for size in self.plan.sizes],
            "seeds": list(self.plan.seeds),
            "runs": list(self.runs),
            "points": [asdict(one) for one in self.points],
            "law": {name: asdict(one) for name, one in self.law.items()} or None,
            "deviation": None if fit is None else fit.deviation,
            "freedom": None if fit is None else fit.freedom,
            "no_law": list(self.reasons),
            "rehearsal": None if self.rehearsal is None else asdict(self.rehearsal),
            "optimum": None if best is None else {"flops": self.flops, "N": asdict(best[0]), "D": asdict(best[1])},
            "prediction": None if self.forecast is None else asdict(self.forecast),
            "measured": {str(seed): loss for seed, loss in self.losses.items()},
            "verdict": self.verdict,
            "variants": [one.as_data() for one in self.variants],
            "notes": list(self.plan.notes),
            "failed": dict(self.failed),
            "altered": dict(self.altered),
        }


def points_of(plan: LadderPlan, arms: Sequence[ArmResult]) -> tuple[Point, ...]:
    """Return the mean loss of each fitted size on each budget over all seeds that did not diverge."""
    points, fitted = [], {arm.name for arm in plan.fitted}
    for arm, result in zip(plan.arms, arms, strict=True):
        if arm.name not in fitted:
            continue
        cells = [cell for cell in result.cells if LOSS in cell.scores]
        if cells:
            tokens = math.fsum(cell.tokens for cell in cells) / len(cells)
            loss = math.fsum(cell.scores[LOSS] for cell in cells) / len(cells)
            points.append(Point(plan.size(arm).parameters, tokens, loss, len(cells)))
    return tuple(points)


def foreseen(plan: LadderPlan, folder: Path, fit: LawFit, variants: Sequence[VariantResult] = ()) -> Forecast:
    """Return the saved forecast of a ladder, or compute and save one.

    Raise RunError if the largest size has already been trained without a saved forecast.
    """
    if (folder / FORECAST).exists():
        return read_forecast(folder)
    arm = plan.held_out
    paths = [path for one in plan.last for path in (folder / RUNS).glob(f"{escape(slug(one.name))}-*")]
    begun = sorted(path.name for path in paths if path.suffix != ".claim")
    if begun:
        text = f"{folder / FORECAST}: is missing, and {begun[0]} has begun: nothing can be predicted any more"
        raise RunError(f"{text}; move the runs of {arm.name} away")
    size = plan.size(arm)
    tokens = max(one.tokens for one in fit.points)  # equal steps on the same data
    predicted = fit.prediction(size.parameters, tokens)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    others = tuple(one.forecast for one in variants if one.forecast is not None)
    forecast = Forecast(size.name, size.parameters, tokens, plan.seeds, predicted, now, fit.points, others)
    write_json(folder / FORECAST, TypeAdapter(Forecast).dump_python(forecast, mode="json"))
    return forecast


def read_forecast(folder: Path) -> Forecast:
    """Read the saved forecast; raise RunError if it is invalid."""
    try:
        return TypeAdapter(Forecast).validate_python(read_json(folder / FORECAST))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{folder / FORECAST}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None


def verdict_of(forecast: Forecast, losses: Sequence[float]) -> str:
    """Describe whether the measured loss is within the interval."""
    if not losses:
        return "open: the largest size has no loss"
    mean = math.fsum(losses) / len(losses)
    inside = "within" if forecast.predicted.holds(mean) else "outside"
    away = mean / forecast.predicted.value - 1
    text = f"{inside} the interval: predicted {shown(forecast.predicted)}, measured {mean:.4g} ({away:+.2%})"
    return f"{text}, mean of {len(losses)} seed{'s' * (len(losses) != 1)}"


def ladder_results(
    plan: LadderPlan, folder: Path, flops: float | None = None, failed: Mapping[str, str] | None = None
) -> LadderResults:
    """Return the current results in a ladder's folder; `failed` has the reasons of failed runs by name."""
    arms, altered = arm_results(plan, folder, failed or {})
    points = points_of(plan, arms)
    fit, reasons = law_of(points)
    if altered:
        fit, reasons = None, tuple(f"{name} is not counted: {why}" for name, why in altered.items())
    problem = "; ".join(reasons)
    return LadderResults(
        plan,
        tuple(arms),
        points,
        fit,
        reasons,
        None if fit is None else rehearsed(points),
        read_forecast(folder) if (folder / FORECAST).exists() else None,
        flops or 6 * plan.sizes[-1].parameters * plan.tokens(plan.held_out),
        environment_of([RunFolder(folder / RUNS / cell.folder) for arm in arms for cell in arm.cells]),
        failed or {},
        altered,
        variant_results(plan, arms, problem),
    )
