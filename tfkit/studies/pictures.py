"""Pictures of runs side by side, as SVG: curves with bands, and the loss against what it cost."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfkit.core.errors import UsageError
from tfkit.studies.results import ArmResult, Results

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#9f6b53", "#787774", "#cb912f", "#337ea9", "#d44c47")
COSTS = {
    "parameters": "parameters",
    "flops": "FLOPs of a token",
    "seconds": "seconds of training",
    "peak_memory": "peak memory, bytes",
}


def matplotlib_figure() -> Any:
    """The class of figures that need no display; raises UsageError that says how to install it."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise UsageError('pictures need the package matplotlib: pip install "tfkit[study]"') from None


def svg(figure: Any, name: str) -> str:
    """A figure as SVG without a date, so that the same runs give the same text; ids begin with `name`."""
    matplotlib = importlib.import_module("matplotlib")
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def curves(results: Results, measure: str) -> str:
    """A measure at each validation by steps: the mean over seeds as a line, the least and the most as its band."""
    figure = matplotlib_figure()(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, arm in enumerate(results.own):
        steps, low, mean, high = _band(arm, measure)
        if not steps:
            continue
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(steps, mean, color=colour, label=arm.name, linewidth=1.6, marker="o", markersize=2.5)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel(measure)
    finish(axes)
    return svg(figure, f"curves-{measure}")


def _band(arm: ArmResult, measure: str) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps with the least, mean and largest value of the runs that have one there."""
    values: dict[int, list[float]] = {}
    for cell in arm.cells:
        for point in cell.curve:
            if measure in point:
                values.setdefault(int(point["step"]), []).append(point[measure])
    steps = sorted(values)
    return (
        steps,
        [min(values[step]) for step in steps],
        [float(np.mean(values[step])) for step in steps],
        [max(values[step]) for step in steps],
    )


def costs(results: Results, measure: str) -> str:
    """The first measure against parameters, FLOPs, time and memory; arms that no other beats in both have a ring."""
    known = {name: words for name, words in COSTS.items() if any(_means(arm, name) is not None for arm in results.own)}
    figure = matplotlib_figure()(figsize=(8, 3.2 * ((len(known) + 1) // 2)), layout="constrained")
    panels = np.atleast_1d(figure.subplots((len(known) + 1) // 2, 2)).ravel()
    for axes, (cost, words) in zip(panels, known.items(), strict=False):
        points = {arm.name: (_means(arm, cost), _means(arm, measure)) for arm in results.own}
        front = pareto(points, measure in results.rising)
        for place, (name, (x, y)) in enumerate(points.items()):
            if x is None or y is None:
                continue
            colour = COLOURS[place % len(COLOURS)]
            axes.scatter([x], [y], color=colour, s=28, label=name)
            if name in front:
                axes.scatter([x], [y], s=110, facecolors="none", edgecolors=colour, linewidths=1.2)
        axes.set_xlabel(words)
        axes.locator_params(axis="x", nbins=4)
        axes.set_ylabel(measure)
        axes.grid(alpha=0.25)
    for axes in panels[len(known) :]:
        axes.set_visible(False)
    if panels[0].get_legend_handles_labels()[1]:
        panels[0].legend(fontsize=7, frameon=False)
    return svg(figure, f"costs-{measure}")


def pareto(points: Mapping[str, tuple[float | None, float | None]], rising: bool) -> set[str]:
    """The points that no other beats in one coordinate and equals or beats in the other: less cost, better value."""
    sign = -1.0 if rising else 1.0
    there = {name: (x, sign * y) for name, (x, y) in points.items() if x is not None and y is not None}
    return {name for name, one in there.items() if not any(_beats(other, one) for other in there.values())}


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and tuple(one) != tuple(other)


def _means(arm: ArmResult, measure: str) -> float | None:
    if measure == "parameters":
        return float(arm.parameters) or None
    if measure == "flops":
        return float(arm.flops) or None
    found = arm.spread(measure)
    return None if found is None else found.mean


def finish(axes: Any) -> None:
    """Give the axes their grid and legend."""
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(handles, labels, fontsize=8, frameon=False)
