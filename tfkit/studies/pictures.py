"""Pictures comparing runs, as SVG: curves with bands, and the loss by cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfkit.core.figures import COLOURS, finished, label, matplotlib_figure, svg
from tfkit.studies.plan import EXACT
from tfkit.studies.results import ArmResult, Results

COSTS = {
    "parameters": "parameters",
    "flops": "FLOPs of a token",
    "cache_bytes": "decode cache, bytes",
    "seconds": "seconds of training",
    "peak_memory": "peak memory, bytes",
}


def curves(results: Results, measure: str) -> str:
    """Plot a measure by steps: the mean over seeds as a line, minimum and maximum as a band."""
    figure = matplotlib_figure()(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, arm in enumerate(results.own):
        steps, low, mean, high = _band(arm, measure)
        if not steps:
            continue
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(steps, mean, color=colour, label=label(arm.name), linewidth=1.6, marker="o", markersize=2.5)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel(measure)
    finished(axes)
    return svg(figure, f"curves-{measure}")


def _band(arm: ArmResult, measure: str) -> tuple[list[int], list[float], list[float], list[float]]:
    """Return the steps with the minimum, mean and maximum over the available runs."""
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
    """Plot the first measure by parameters, FLOPs, time and memory; the Pareto front is marked by rings."""
    asked = [name for name in COSTS if name != "cache_bytes" or name in results.measure]
    known = {name: COSTS[name] for name in asked if any(_means(arm, name) is not None for arm in results.own)}
    figure = matplotlib_figure()(figsize=(8, 3.2 * ((len(known) + 1) // 2)), layout="constrained")
    panels = np.atleast_1d(figure.subplots((len(known) + 1) // 2, 2)).ravel()
    for axes, (cost, words) in zip(panels, known.items(), strict=False):
        points = {arm.name: (_means(arm, cost), _means(arm, measure)) for arm in results.own}
        front = pareto(points, measure in results.rising)
        for place, (name, (x, y)) in enumerate(points.items()):
            if x is None or y is None:
                continue
            colour = COLOURS[place % len(COLOURS)]
            axes.scatter([x], [y], color=colour, s=28, label=label(name))
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
    """Return the Pareto front: points that no other dominates in cost and value."""
    sign = -1.0 if rising else 1.0
    there = {name: (x, sign * y) for name, (x, y) in points.items() if x is not None and y is not None}
    return {name for name, one in there.items() if not any(_beats(other, one) for other in there.values())}


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and tuple(one) != tuple(other)


def _means(arm: ArmResult, measure: str) -> float | None:
    if measure in EXACT:
        return float(arm.exact(measure)) or None
    found = arm.spread(measure)
    return None if found is None else found.mean
