"""Plots of HTML pages: a scale in percent of a plot's box, axes, lines with bands, and a legend of switches."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from tfkit.core.output import printable

FARTHEST = 5.0
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps between ticks, times a power of ten
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))  # outliers are only hidden among at least ten values
COLOURS, DASHES = 8, ("", "6 3", "2 2")  # colors are CSS variables of the page, --c0 to --c7
DOTS = 60  # maximum number of points that are drawn as dots on a line
Points = Mapping[tuple[int, int], float]  # values by seed and step


@dataclass(frozen=True)
class LinearScale:
    """Linear scale from a range of values to percentages of a plot's width, or of its height from the top."""

    low: float
    high: float
    vertical: bool = False

    @classmethod
    def of(
        cls, values: Iterable[float], vertical: bool = False, margin: float = 0.06, center: float | None = None
    ) -> LinearScale:
        """Return the scale that shows all values with a margin on both sides.

        With a center, values farther from it than FARTHEST times the third quartile of the distances are left out.
        """
        known = list(values) or [0.0]
        if center is not None:
            distances = sorted(abs(value - center) for value in known)
            known = [value for value in known if abs(value - center) <= FARTHEST * distances[len(known) * 3 // 4]]
        low, high = min(known), max(known)
        reach = margin * (high - low) or abs(high) * margin or 1.0
        return cls(low - reach, high + reach, vertical)

    def share(self, value: float) -> float:
        """Return the percentage of a value."""
        share = 100 * (value - self.low) / (self.high - self.low)
        return round(100 - share if self.vertical else share, 2)

    def at(self, value: float) -> str:
        """Return the percentage of a value as an SVG length."""
        return f"{self.share(value):g}%"

    def between(self, low: float, high: float) -> str:
        """Return the distance between two values as an SVG length."""
        return f"{abs(self.share(high) - self.share(low)):g}%"

    def holds(self, value: float) -> bool:
        """True if the value is within the range."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Return round values within the range with their labels."""
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next((one * power for one in STEPS if one * power >= raw), 10 * power)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        largest = max(abs(self.low), abs(self.high))
        size, unit = next(((size, unit) for size, unit in UNITS if largest >= 10 * size), (1.0, ""))
        places = max(0, -math.floor(math.log10(step / size) + 1e-9))
        places += abs(round(step / size, places) - step / size) > 1e-9 * step / size  # steps of 2.5
        return [(number * step, f"{number * step / size:,.{places}f}{unit}") for number in numbers]


def text(words: str) -> str:
    """Escape user text for HTML and SVG."""
    return escape(printable(words))


def style_of(place: int) -> str:
    """Return the color and dashes of the arm with this index. The baseline has the text color."""
    if place == 0:
        return "--c: var(--ink)"
    colour, dash = (place - 1) % COLOURS, DASHES[(place - 1) // COLOURS % len(DASHES)]
    return f"--c: var(--c{colour})" + (f"; --dash: {dash}" if dash else "")


def mark(place: int, inner: str, kind: str = "") -> str:
    """Group the marks of an arm, which the page can switch on and off."""
    return f'<g class="arm {kind}" data-arm="{place}" style="{style_of(place)}">{inner}</g>'


def stretched(x: LinearScale, y: LinearScale, shapes: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw shapes ("polygon" or "polyline", by tag) through values in a box that fills the plot and clips them."""
    styles = {"polygon": "band", "polyline": "line"}
    inner = ""
    for tag, points in shapes.items():
        path = " ".join(f"{x.share(one):g},{y.share(other):g}" for one, other in points)
        inner += f'<{tag} class="{styles[tag]}" points="{path}"/>'
    return f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height="100%">{inner}</svg>'


def symbol(x: str, y: str, path: str) -> str:
    """Draw a path about a place."""
    return f'<svg x="{x}" y="{y}" overflow="visible"><path class="mean" d="{path}"/></svg>'


def frame(x: LinearScale, y: LinearScale, labels: tuple[str, str], inner: str) -> str:
    """Return a plot with grid, ticks and the labels of both axes."""
    grid = "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{y.at(value)}" y2="{y.at(value)}"/>'
        f'<text x="-8" y="{y.at(value)}" dy="0.32em" text-anchor="end">{label}</text>'
        for value, label in y.ticks()
    )
    grid += "".join(
        f'<line class="tick" x1="{x.at(value)}" x2="{x.at(value)}" y1="100%" y2="101.5%"/>'
        f'<text x="{x.at(value)}" y="100%" dy="1.5em" text-anchor="middle">{label}</text>'
        for value, label in x.ticks(4)
    )
    across, up = map(text, labels)
    picture = f'<svg class="area" role="img" aria-label="{up} by {across}" overflow="visible">{grid}{inner}</svg>'
    return f'<div class="plot"><p class="axis">{up}</p>{picture}<p class="axis across">{across}</p></div>'


def legend(names: Sequence[str]) -> str:
    """Return a switch for each arm that is drawn, below the plot."""
    swatch = '<svg class="swatch" aria-hidden="true"><line class="line" x1="0" x2="100%" y1="50%" y2="50%"/></svg>'
    switches = "".join(
        f'<label data-arm="{place}" style="{style_of(place)}"><input type="checkbox" checked data-arm="{place}">'
        f"{swatch}{text(name)}</label>"
        for place, name in enumerate(names)
        if name
    )
    return f'<div class="legend">{switches}<button hidden>all</button><button hidden>none</button></div>'


def line_plot(arms: Sequence[Points], steps: Collection[int], label: str, center: float | None = None) -> str:
    """Plot the mean over seeds of each arm as a line, minimum and maximum as a band; the baseline is on top."""
    found = [{step: [v for (_, at), v in points.items() if at == step] for step in sorted(steps)} for points in arms]
    x = LinearScale.of(steps, margin=0.03)
    y = LinearScale.of((value for points in arms for value in points.values()), vertical=True, center=center)
    drawn = []
    for place, curve in enumerate(found):
        low, mean, high = (
            [(float(step), float(of(values))) for step, values in curve.items() if values] for of in (min, np.mean, max)
        )
        dots = "".join(f'<circle cx="{x.at(at)}" cy="{y.at(value)}" r="2.2"/>' for at, value in mean if y.holds(value))
        dots *= len(mean) <= DOTS
        shapes = stretched(x, y, {"polygon": [*low, *reversed(high)], "polyline": mean})
        drawn.append(mark(place, shapes + dots, "first" * (place == 0)))
    return frame(x, y, ("step", label), "".join(reversed(drawn)))
