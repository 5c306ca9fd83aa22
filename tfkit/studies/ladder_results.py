"""Results of a ladder's runs so far, and conclusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tfkit.studies.board import Board
from tfkit.studies.forecast import (
    FORECAST,
    Forecast,
    Rehearsal,
    held_out_losses,
    law_of,
    points_of,
    read_forecast,
    rehearsed,
    shown,
    verdict_of,
)
from tfkit.studies.ladder import LOSS, LadderPlan
from tfkit.studies.law import NAMES, Interval, Point
from tfkit.studies.law_fit import LawFit
from tfkit.studies.plan import PlannedRun
from tfkit.studies.report import environment_of
from tfkit.studies.statistics import spread

FORMAT = 1
WIDEST = 100.0  # maximum ratio of the ends of the interval of N: beyond it the optimum is meaningless


@dataclass(frozen=True)
class LadderResults:
    """All runs of a ladder with the fitted law and the forecast."""

    plan: LadderPlan
    points: tuple[Point, ...]
    runs: tuple[Mapping[str, Any], ...]  # by COLUMNS
    fit: LawFit | None
    reasons: tuple[str, ...]
    rehearsal: Rehearsal | None
    forecast: Forecast | None
    losses: Mapping[int, float]
    flops: float
    environment: Sequence[tuple[str, str]] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The outcome of the prediction."""
        return "" if self.forecast is None else verdict_of(self.forecast, list(self.losses.values()))

    @cached_property
    def law(self) -> dict[str, Interval]:
        """E, A, a, B and b with their intervals; empty without a law."""
        return {} if self.fit is None else {name: self.fit.parameter(name) for name in NAMES}

    @cached_property
    def optimum(self) -> tuple[Interval, Interval] | None:
        """Compute-optimal N and D; None if the exponents are unbounded, or N is too uncertain."""
        if self.fit is None:
            return None
        found = self.fit.optimum(self.flops)
        ends = [self.law["a"], self.law["b"], found]
        if any(end is None for one in ends for end in (one.low, one.high)):
            return None
        if found.high is None or found.low is None or found.high > WIDEST * found.low:
            return None
        tokens = [self.flops / 6 / (one or 1.0) for one in (found.value, found.high, found.low)]
        return found, Interval(*tokens)

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
            yield "no rehearsal: the sizes below the largest of the fitted ones tell no law"
        best = self.optimum
        if best is None:
            yield f"compute-optimal N and D for {self.flops:.2e} FLOPs: not told by these runs"
            return
        seen = (self.plan.sizes[0].parameters, self.plan.sizes[-1].parameters)
        beyond = "" if seen[0] <= best[0].value <= seen[1] else "; beyond the sizes that were trained"
        found = f"N = {shown(best[0], '.2e')}, D = {shown(best[1], '.2e')}"
        yield f"compute-optimal for {self.flops:.2e} FLOPs (6 N D): {found}{beyond}"

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each size and budget: n, mean, standard deviation over seeds, and the law's value."""
        for arm in self.plan.arms:
            own = [run for run in self.runs if run["arm"] == arm.name]
            losses = [run["loss"] for run in own if run["loss"] is not None]
            found, size = spread(losses), self.plan.size(arm)
            tokens = next((run["tokens"] for run in own if run["tokens"]), self.plan.tokens(arm))
            law = "" if self.fit is None else f"{self.fit.law.loss(size.parameters, tokens):.4g}"
            mean = "" if found is None else f"{found.mean:.4g}"
            sd = "" if found is None or found.sd is None else f"{found.sd:.2g}"
            name = f"{size.name}, held out" if arm is self.plan.held_out else size.name
            yield [
                name,
                f"{size.parameters:,}",
                f"{tokens:,.0f}",
                f"{self.plan.flops(arm):.2e}",
                str(len(losses)),
                mean,
                sd,
                law,
            ]

    def as_data(self) -> dict[str, Any]:
        """Return the contents of ladder.json."""
        best = self.optimum
        fit = self.fit
        return {
            "format": FORMAT,
            "ladder": self.plan.name,
            "sizes": [asdict(size) | {"values": dict(size.values)} for size in self.plan.sizes],
            "seeds": list(self.plan.seeds),
            "runs": [dict(run) for run in self.runs],
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
            "failed": dict(self.failed),
        }


def ladder_results(
    plan: LadderPlan, folder: Path, flops: float | None = None, failed: Mapping[str, str] | None = None
) -> LadderResults:
    """Return the current results in a ladder's folder."""
    points = points_of(plan, folder)
    fit, reasons = law_of(points)
    board = Board(plan, folder)
    planned = [PlannedRun(arm.name, seed) for arm in plan.arms for seed in plan.seeds]
    return LadderResults(
        plan,
        points,
        tuple(_run(plan, board, run) for run in planned),
        fit,
        reasons,
        rehearsed(points) if fit is not None else None,
        read_forecast(folder) if (folder / FORECAST).exists() else None,
        held_out_losses(plan, folder),
        flops or 6 * plan.sizes[-1].parameters * plan.tokens(plan.held_out),
        environment_of([board.run_folder(run) for run in planned]),
        failed or {},
    )


def _run(plan: LadderPlan, board: Board, run: PlannedRun) -> dict[str, Any]:
    arm, history = plan.arm(run.arm), board.history(run)
    size = plan.size(arm)
    return {
        "arm": arm.name,
        "size": size.name,
        "parameters": size.parameters,
        "tokens": None if history is None else history.tokens,
        "flops": plan.flops(arm),
        "seed": run.seed,
        "state": board.state(run),
        "loss": board.scores(run).get(LOSS),
    }
