"""curves.svg: loss, metrics, learning rate and gradient norm by step, drawn after training."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfkit.core.errors import RunError
from tfkit.core.figures import COLOURS, can_draw, drawn, finished, matplotlib_figure, svg
from tfkit.storage.checksums import write_text
from tfkit.storage.files import read_bytes
from tfkit.training.folder import CURVES, METRICS, RunFolder
from tfkit.training.metrics_log import good_lines

LEAST = 20  # minimum number of steps for a plot
POINTS = 400  # maximum points per line; more are averaged in groups
PANELS = {"loss": "loss, nats", "learning_rate": "learning rate", "gradient_norm": "gradient norm"}
Record = Mapping[str, Any]


def write_curves(folder: RunFolder) -> None:
    """Plot metrics.jsonl. Do nothing without matplotlib, with too few steps, or if plotting or writing fails."""
    if not can_draw():
        return
    with contextlib.suppress(RunError, OSError):
        records = [json.loads(line) for line in good_lines(read_bytes(folder / METRICS))[0]]
        if len(records) >= LEAST:
            picture = drawn(CURVES, lambda: curves(records, folder.path.name))
            if picture:
                write_text(folder / CURVES, picture)


def curves(records: Sequence[Record], title: str) -> str:
    """Plot a run's records as SVG, one panel per quantity. The validation loss is drawn over the training loss."""
    measured = list(dict.fromkeys(name for record in records for name in record if name.startswith("valid.")))
    panels = {**PANELS, **{name: name for name in measured if name != "valid.loss"}}
    rows = math.ceil(len(panels) / 2)
    figure = matplotlib_figure()(figsize=(9, 3 * rows), layout="constrained")
    figure.suptitle(title)
    grid = np.atleast_1d(figure.subplots(rows, 2)).ravel()
    for axes, (name, words) in zip(grid, panels.items(), strict=False):
        steps, values = _line(records, name)
        validated = name.startswith("valid.")
        axes.plot(steps, values, color=COLOURS[validated], linewidth=1.2, label="training" if name == "loss" else None)
        if name == "loss" and "valid.loss" in measured:
            axes.plot(*_line(records, "valid.loss"), color=COLOURS[1], marker="o", markersize=3, label="validation")
        if name == "gradient_norm":
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(words)
        finished(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return svg(figure, "curves") + "\n"


def _line(records: Sequence[Record], name: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of a quantity, averaged in groups if more than POINTS."""
    points = [(record["step"], record[name]) for record in records if isinstance(record.get(name), (int, float))]
    size = math.ceil(len(points) / POINTS) or 1
    groups = [np.asarray(points[start : start + size], dtype=float) for start in range(0, len(points), size)]
    means = [group.mean(axis=0) for group in groups]
    return [float(mean[0]) for mean in means], [float(mean[1]) for mean in means]
