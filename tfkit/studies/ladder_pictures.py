"""Pictures of a ladder as SVG: the losses and the law by parameters and by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfkit.core.figures import COLOURS, finished, matplotlib_figure, svg
from tfkit.studies.ladder_results import LadderResults
from tfkit.studies.law import Point


def by_parameters(results: LadderResults) -> str:
    """Plot the loss by N with one curve per token budget; the forecast is a bar, the measured loss a cross."""
    budgets = sorted({one.tokens for one in results.points})
    figure, axes = _empty("parameters of the layers (N)")
    most = results.plan.sizes[-1].parameters
    for colour, tokens in zip(_colours(budgets), budgets, strict=True):
        own = [one for one in results.points if one.tokens == tokens]
        axes.scatter([one.parameters for one in own], [one.loss for one in own], color=colour, s=22)
        if results.fit is not None:
            xs = np.geomspace(min(one.parameters for one in own), most, 80)
            ys = [results.fit.law.loss(float(x), tokens) for x in xs]
            axes.plot(xs, ys, color=colour, linewidth=1.4, label=f"D = {tokens:,.0f}")
    _forecast(axes, results, most)
    finished(axes)
    return svg(figure, "ladder-parameters")


def by_tokens(results: LadderResults) -> str:
    """Plot the loss by D with one curve per size."""
    figure, axes = _empty("tokens read (D)")
    sizes = [size for size in results.plan.sizes if any(one.parameters == size.parameters for one in results.points)]
    for colour, size in zip(_colours(sizes), sizes, strict=True):
        own: list[Point] = [one for one in results.points if one.parameters == size.parameters]
        axes.scatter([one.tokens for one in own], [one.loss for one in own], color=colour, s=22)
        if results.fit is not None:
            xs = np.geomspace(min(one.tokens for one in own), max(one.tokens for one in own), 80)
            ys = [results.fit.law.loss(size.parameters, float(x)) for x in xs]
            axes.plot(xs, ys, color=colour, linewidth=1.4, label=size.name)
    if results.forecast is not None:
        _forecast(axes, results, results.forecast.tokens)
    finished(axes)
    return svg(figure, "ladder-tokens")


def _empty(label: str) -> tuple[Any, Any]:
    figure = matplotlib_figure()(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("validation loss")
    return figure, axes


def _colours(values: Sequence[object]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(values))]


def _forecast(axes: Any, results: LadderResults, x: float) -> None:
    """Plot the interval of the forecast and the measured losses at `x`."""
    if results.forecast is None:
        return
    one = results.forecast.predicted
    low, high = one.low or 0.0, one.high or one.value
    axes.errorbar([x], [one.value], [[one.value - low], [high - one.value]], color="#222", capsize=5, label="predicted")
    if results.losses:
        axes.scatter(
            [x] * len(results.losses), list(results.losses.values()), marker="x", color="#d44c47", label="measured"
        )
