"""Pictures of a study's page: differences from the baseline, curves, and a measure against its costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tfkit.reports.plots import LinearScale, Points, frame, legend, line_plot, mark, stretched, symbol, text
from tfkit.studies.effects import Effect
from tfkit.studies.results import ArmResult, Results
from tfkit.studies.statistics import LEVEL, Comparison, _scipy_stats
from tfkit.studies.wording import COSTS, KINDS, cost_of, difference, front

FAR = 3.0  # a forest's axis ends at this multiple of its usual differences
NAME = 6.0  # height of a line of text in percent of a plot's
MANY = 5  # with this many arms or more, only the baseline has a band


@dataclass(frozen=True)
class ForestRow:
    """Row of a forest plot: the mean difference, its interval, and the difference of each seed."""

    name: str
    dots: Sequence[float]
    mean: float | None = None
    interval: tuple[float, float] | None = None
    words: str = ""
    verdict: str = ""
    kind: str = ""

    @property
    def reach(self) -> float:
        """Largest distance from 0."""
        return max(map(abs, (*self.dots, *(self.interval or ()))), default=0.0)


def forest(results: Results, measure: str) -> str:
    """Draw the differences from the baseline: a row for each arm, the best first."""
    rows = list(_forest_rows(results, measure))
    noise = results.arms[0].spread(measure)
    sd = 0.0 if noise is None else noise.sd or 0.0
    x = _axis(rows[1:], [sd, *map(abs, rows[0].dots)])
    sides = ("worse", "better") if measure in results.rising else ("better", "worse")
    head = "".join(f'<text x="{x.at(value)}" y="30" text-anchor="middle">{label}</text>' for value, label in x.ticks())
    head += f'<text x="0" y="12">← {sides[0]}</text><text x="100%" y="12" text-anchor="end">{sides[1]} →</text>'
    lines = [f'<div class="row"><span></span><svg class="strip head" aria-hidden="true">{head}</svg></div>']
    for row in rows:
        label = f"{row.name}: {row.words} {row.verdict}"
        lines.append(
            f'<div class="row {row.kind}"><span class="name">{text(row.name)}</span>'
            f'<svg class="strip" role="img" aria-label="{text(label)}">{_strip(row, x, sd)}</svg>'
            f'<span class="words">{text(row.words)}</span><span class="verdict">{text(row.verdict)}</span></div>'
        )
    return f'<div class="forest">{"".join(lines)}</div>'


def _axis(rows: Sequence[ForestRow], noise: Sequence[float]) -> LinearScale:
    """Return a symmetric scale that shows the noise and most rows; a few far ones and long intervals are cut."""
    means, reaches = (sorted(found) for found in ([abs(row.mean or 0.0) for row in rows], [row.reach for row in rows]))
    middle = (len(rows) - 1) * 3 // 4
    limit = FAR * max([*noise, *means[middle : middle + 1], *reaches[len(rows) // 2 : len(rows) // 2 + 1]])
    ends = [end for row in rows for end in (*row.dots, *(row.interval or ())) if abs(end) <= limit]
    return LinearScale.of([sign * abs(end) for end in (*noise, *ends) for sign in (-1, 1)])


def _forest_rows(results: Results, measure: str) -> Iterator[ForestRow]:
    """Yield the row of the baseline, then the other rows from best to worst. Rows without a difference come last."""
    baseline, *arms = results.shown
    noise, base = baseline.spread(measure), baseline.values(measure)
    own = [value - noise.mean for value in base.values() if value is not None and noise is not None]
    yield ForestRow(baseline.name, own, verdict="baseline")
    known = {one.arm: one for one in results.comparisons if one.measure == measure}
    sign = -1.0 if measure in results.rising else 1.0
    rows = [_forest_row(arm, base, known[arm.name]) for arm in arms if arm.name in known]
    yield from sorted(rows, key=lambda row: np.inf if row.mean is None else sign * row.mean)


def _forest_row(arm: ArmResult, base: Mapping[int, float | None], one: Comparison) -> ForestRow:
    pairs = [(value, base.get(seed)) for seed, value in arm.values(one.measure).items()]
    dots = [value - other for value, other in pairs if value is not None and other is not None]
    interval = None if one.low is None or one.high is None else (one.low, one.high)
    kind = KINDS.get(one.verdict, one.verdict)
    verdict = "open" if one.problem else one.words()  # the reason is in the table
    return ForestRow(arm.name, dots, one.mean, interval, difference(one), verdict, kind)


def _strip(row: ForestRow, x: LinearScale, sd: float) -> str:
    """Draw the noise band, the line of no difference, the interval, a dot for each seed, and the mean."""
    drawn = f'<rect class="noise-band" x="{x.at(-sd)}" width="{x.between(-sd, sd)}" height="100%"/>' if sd else ""
    drawn += f'<line class="zero" x1="{x.at(0)}" x2="{x.at(0)}" y1="0" y2="100%"/>'
    if row.interval is not None:
        low, high = (min(max(end, x.low), x.high) for end in row.interval)
        drawn += f'<line class="interval" x1="{x.at(low)}" x2="{x.at(high)}" y1="36%" y2="36%"/>'
        drawn += symbol("0", "36%", "M5-4 0 0 5 4") * (low > row.interval[0])
        drawn += symbol("100%", "36%", "M-5-4 0 0-5 4") * (high < row.interval[1])
    drawn += "".join(f'<circle class="dot" cx="{x.at(dot)}" cy="80%" r="2.5"/>' for dot in row.dots if x.holds(dot))
    if row.mean is None:
        return drawn
    if x.holds(row.mean):
        return drawn + symbol(x.at(row.mean), "36%", "M0-6 6 0 0 6-6 0z")
    return drawn + (symbol("100%", "36%", "M-9-6 0 0-9 6z") if row.mean > 0 else symbol("0", "36%", "M9-6 0 0 9 6z"))


def half_normal(found: Sequence[Effect], chosen: Collection[str]) -> str:
    """Plot effects in standard errors by half-normal quantiles (Daniel 1959), with the band of those without any."""
    known = [(one.name, abs(one.mean) / one.error, one.freedom) for one in found if one.mean is not None and one.error]
    known.sort(key=lambda one: one[1])
    if not known:
        return ""
    quantiles = [NormalDist().inv_cdf(0.5 + (place + 0.5) / (2 * len(known))) for place in range(len(known))]
    limit = float(_scipy_stats().t.isf(LEVEL / 2 / len(known), known[0][2]))
    x = LinearScale.of([0.0, *quantiles])
    y = LinearScale.of([0.0, limit, known[-1][1]], vertical=True)
    drawn = f'<rect class="noise-band" width="100%" y="{y.at(limit)}" height="{y.between(0.0, limit)}"/>'
    drawn += stretched(x, y, {"polyline": [(0.0, 0.0), (x.high, x.high)]})
    level = 100.0 + NAME
    for (name, size, _), quantile in zip(known, quantiles, strict=True):
        place, kind = f'="{x.at(quantile)}"', "" if name in chosen else ' class="ring"'
        drawn += f'<circle{kind} cx{place} cy="{y.at(size)}" r="4"><title>{text(name)}</title></circle>'
        if name in chosen or size > limit:
            level = min(y.share(size), level - NAME)
            drawn += f'<text x{place} y="{level:g}%" dx="-6" dy="-0.2em" text-anchor="end">{text(name)}</text>'
    labels = ("half-normal quantile", "effect in standard errors")
    return f"<figure>{frame(x, y, labels, mark(0, drawn))}</figure>"


def curves(results: Results, measure: str) -> str:
    """Plot a measure by steps, as it is and as the difference from the baseline at the same seed and step."""
    own, base = [_points(arm, measure) for arm in results.own], _points(results.own[0], measure)
    differences = [{at: value - base[at] for at, value in points.items() if at in base} for points in own]
    steps = {step for points in own for _, step in points}
    panels = [line_plot(own, steps, measure)]
    if len(own) > 1 and base:
        panels.append(line_plot(differences, steps, f"{measure}, difference from {results.own[0].name}", 0.0))
    kind = "chart many" if len(own) > MANY else "chart"
    names = [arm.name if points else "" for arm, points in zip(results.own, own, strict=True)]
    return f'<figure class="{kind}"><div class="panels wide">{"".join(panels)}</div>{legend(names)}</figure>'


def _points(arm: ArmResult, measure: str) -> Points:
    points = ((cell.seed, point) for cell in arm.cells for point in cell.curve)
    return {(seed, int(point["step"])): point[measure] for seed, point in points if measure in point}


def costs(results: Results, measure: str) -> str:
    """Plot a measure against each cost: means with standard deviations as crosses. Rings mark the Pareto front."""
    shown = [name for name in COSTS if name != "cache_bytes" or name in results.measure]
    known = [name for name in shown if any(cost_of(arm, name) and arm.spread(measure) for arm in results.own)]
    panels = [_panel(results, measure, cost) for cost in known]
    names = [arm.name if arm.spread(measure) else "" for arm in results.own]
    return f'<figure class="chart"><div class="panels">{"".join(panels)}</div>{legend(names)}</figure>'


def _panel(results: Results, measure: str, cost: str) -> str:
    ahead = front(results, measure, cost)
    points = [
        (place, arm.name, one, other)
        for place, arm in enumerate(results.own)
        if (one := cost_of(arm, cost)) and (other := arm.spread(measure))
    ]
    x = LinearScale.of(end for _, _, one, _ in points for end in (one.least, one.most))
    center = float(np.median([other.mean for *_, other in points]))
    y = LinearScale.of((end for *_, one in points for end in (one.least, one.most)), vertical=True, center=center)
    drawn = []
    for place, name, one, other in points:
        if not y.holds(other.mean):
            arrow = ("0", "M-6 9 0 0 6 9z") if other.mean > y.high else ("100%", "M-6-9 0 0 6-9z")
            drawn.append(mark(place, symbol(x.at(one.mean), *arrow)))
            continue
        left, right = one.mean - (one.sd or 0.0), one.mean + (one.sd or 0.0)
        low, high = other.mean - (other.sd or 0.0), other.mean + (other.sd or 0.0)
        across, up = x.at(one.mean), y.at(other.mean)
        inner = f'<line class="spread" x1="{x.at(left)}" x2="{x.at(right)}" y1="{up}" y2="{up}"/>'
        inner += f'<line class="spread" x1="{across}" x2="{across}" y1="{y.at(low)}" y2="{y.at(high)}"/>'
        inner += f'<circle cx="{across}" cy="{up}" r="4"><title>{text(name)}</title></circle>'
        if name in ahead:
            inner += f'<circle class="ring" cx="{across}" cy="{up}" r="8"/>'
        drawn.append(mark(place, inner))
    return frame(x, y, (COSTS[cost], measure), "".join(drawn))
