"""Words for values, differences and verdicts, the comparison of sizes, and measures against costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from tfkit.core.machine import readable_bytes
from tfkit.reports.formats import latex
from tfkit.studies.plan import EXACT
from tfkit.studies.results import ArmResult, Results, StudyContext, Table
from tfkit.studies.settings import at_size
from tfkit.studies.statistics import LEVEL, Comparison, Spread, compared, judged, spread

HELP = (
    "The difference of each variant from the baseline of the same size, and how it changes from the smallest size to "
    "the largest: the mean over seeds of the difference of differences, with its interval (t distribution, Bonferroni "
    "over the rows). Holds: it is beyond the noise at both sizes, in the same direction, and does not shrink. Shrinks: "
    "it is beyond the noise at the smallest size, and its change is beyond the noise in the other direction. Reverses: "
    "it is beyond the noise at both sizes, in opposite directions. Cannot tell: anything else."
)


@dataclass(frozen=True)
class Trend:
    """Difference of a variant from its baseline by size, smallest first, and its change to the largest size."""

    arm: str
    by_size: Mapping[str, Comparison]
    change: Comparison

    @property
    def verdict(self) -> str:
        """One of "holds", "shrinks", "reverses" and "cannot tell"."""
        small, *_, large = (one.better for one in self.by_size.values())
        if small is None:
            return "cannot tell"
        if large is not None and large is not small:
            return "reverses"
        if self.change.better is not None and self.change.better is not small:
            return "shrinks"
        return "holds" if large is small else "cannot tell"

    def as_data(self) -> dict[str, Any]:
        """Return the entry of results.json; the differences by size are among the comparisons."""
        return {"arm": self.arm, "verdict": self.verdict, "change": asdict(self.change)}


def trends(results: Results) -> list[Trend]:
    """Return the trend of each variant on each measure; empty without sizes."""
    found = [one for measure in results.measure if measure not in EXACT for one in _rows(results, measure)]
    changes = judged([change for *_, change in found], results.rising)
    return [Trend(name, rows, change) for (name, rows, _), change in zip(found, changes, strict=True)]


def _rows(results: Results, measure: str) -> Iterator[tuple[str, dict[str, Comparison], Comparison]]:
    """Yield each variant that has a comparison at all sizes, with these and its uncorrected change."""
    sizes = sorted(results.sizes, key=lambda size: results.at(size).arms[0].parameters)
    known = {one.arm: one for one in results.comparisons if one.measure == measure}
    names = [arm.name.removesuffix(f"@{arm.size}") for arm in results.own if sizes and arm.size == sizes[0]]
    for name in names:
        rows = {size: known[at_size(name, size)] for size in sizes if at_size(name, size) in known}
        if len(rows) < max(2, len(sizes)):
            continue
        small, large = (_differences(results, at_size(name, size), measure) for size in (sizes[0], sizes[-1]))
        yield name, rows, compared(f"{name}@{sizes[-1]}", f"{name}@{sizes[0]}", measure, large, small)


def _differences(results: Results, name: str, measure: str) -> dict[int, float | None]:
    """Return the difference of an arm from the baseline of its size by seed, of pairs without lost runs."""
    by_name: dict[str, ArmResult] = {arm.name: arm for arm in results.arms}
    base = results.at(by_name[name].size).arms[0].values(measure)
    pairs = [(seed, value, base.get(seed)) for seed, value in by_name[name].values(measure).items()]
    return {seed: value - other for seed, value, other in pairs if value is not None and other is not None}


COSTS = {
    "parameters": "parameters",
    "flops": "FLOPs of a token",
    "cache_bytes": "decode cache, bytes",
    "seconds": "seconds of training",
    "peak_memory": "peak memory, bytes",
}


def cost_of(arm: ArmResult, cost: str) -> Spread | None:
    """Return the spread of a cost over the runs; None if unknown. An exact cost has a single value."""
    if cost in EXACT:
        return spread([float(arm.exact(cost))]) if arm.exact(cost) else None
    return arm.spread(cost)


def front(results: Results, measure: str, cost: str) -> set[str]:
    """Return the arms that no other arm beats on a measure and a cost.

    One beats another if neither mean is worse and one of both is better beyond the noise: by the paired t test of
    these two arms at 5 %, without a correction. Exact costs have no noise.
    """
    arms, rising = results.own, [measure] if measure in results.rising else []
    tables = {
        name: Table.of(arms, name, StudyContext(""), rising if name == measure else [])
        for name in {measure, cost} - set(EXACT)
    }
    sign = -1.0 if rising else 1.0
    points = {
        arm.name: (x.mean, sign * y.mean) for arm in arms if (x := cost_of(arm, cost)) and (y := arm.spread(measure))
    }

    @cache
    def is_noise(one: str, other: str, name: str) -> bool:
        if name in EXACT:
            return False
        p = tables[name].compared(one, other).p
        return p is None or p >= LEVEL

    def beats(one: str, other: str) -> bool:
        ahead = [a - b for a, b in zip(points[one], points[other], strict=True)]
        if max(ahead) > 0:
            return False
        names = (cost, measure)
        return any(by < 0 and not is_noise(one, other, name) for by, name in zip(ahead, names, strict=True))

    return {name for name in points if not any(beats(other, name) for other in points if other != name)}


KINDS = {"within the noise": "noise", "equal": "noise", "not held": "not-held"}  # style of a verdict


def difference(one: Comparison) -> str:
    """Format the mean difference with its interval; empty without pairs."""
    if one.mean is None:
        return ""
    mean = signed(one.measure, one.mean)
    if one.low is None or one.high is None:
        return f"{mean} (one pair)" if one.n == 1 else f"{mean} (of {one.n} pairs)"
    return f"{mean} [{signed(one.measure, one.low)}, {signed(one.measure, one.high)}]"


def number(measure: str, value: float | None) -> str:
    """Format a value of a measure."""
    if value is None:
        return ""
    if measure == "peak_memory":
        return readable_bytes(round(value))
    if measure == "seconds":
        return f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def signed(measure: str, value: float | None) -> str:
    """Format a difference with its sign."""
    if value is None:
        return ""
    return ("-" if value < 0 else "+") + number(measure, abs(value))


def with_spread(measure: str, spread: Spread | None) -> str:
    """Format a mean with its standard deviation, rounded to two digits of the deviation."""
    if spread is None or not spread.sd:
        return "" if spread is None else number(measure, spread.mean)
    if measure in ("peak_memory", "seconds"):
        return f"{number(measure, spread.mean)} ± {number(measure, spread.sd)}"
    places = max(0, 1 - math.floor(math.log10(spread.sd)))
    return f"{spread.mean:,.{places}f} ± {spread.sd:,.{places}f}"


def meaning(results: Results) -> str:
    """Define "better" for these results: the direction of each measure, and the test."""
    noisy = [name for name in results.measure if name not in EXACT]
    aims = [f"{'higher' if name in results.rising else 'lower'} {name}" for name in noisy]
    tests = f"all {results.tested} comparisons" if results.tested > 1 else "the only comparison"
    holm = f" after Holm's correction over {tests}" if results.tested > 1 else ""
    return (
        f"Better means {' or '.join(aims)} beyond the noise of the seeds: p below {LEVEL} by the paired t test{holm}."
    )


def answer(results: Results, measure: str) -> str:
    """Name the variants that are better and worse than the baseline on a measure, and count the others."""
    comparisons = [one for one in results.comparisons if one.measure == measure]
    sign = -1.0 if measure in results.rising else 1.0
    parts = []
    for verdict in ("better", "worse", "within the noise", "equal", "diverged", "open"):
        own = sorted((one for one in comparisons if one.verdict == verdict), key=lambda one: sign * (one.mean or 0.0))
        names = f" ({', '.join(one.arm for one in own)})" if verdict in ("better", "worse", "diverged") else ""
        parts += [f"{len(own)} {verdict}{names}"] * bool(own)
    count = "1 variant" if len(comparisons) == 1 else f"{len(comparisons)} variants"
    return f"On {measure}, of {count} against {results.arms[0].name}: {'; '.join(parts)}."


def latex_table(results: Results) -> str:
    """Return a LaTeX table (booktabs) of means and standard deviations, in bold where better than the baseline."""
    arrows = [" $\\uparrow$" if name in results.rising else " $\\downarrow$" for name in results.measure]
    heads = [f"{latex(name)}{arrow}" for name, arrow in zip(results.measure, arrows, strict=True)]
    rows = [" & ".join([latex(arm.name), *_latex_cells(results, arm)]) + r" \\" for arm in results.own]
    lines = [
        "% " + latex(f"Bold: better than {results.arms[0].name}. {meaning(results)}"),
        "% Mean and standard deviation over seeds. Requires \\usepackage{booktabs}.",
        f"\\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
        " & ".join(["variant", *heads]) + r" \\",
        *(r"\midrule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cells(results: Results, arm: ArmResult) -> Iterator[str]:
    better = {one.measure for one in results.comparisons if one.arm == arm.name and one.verdict == "better"}
    for name in results.measure:
        if name in EXACT:
            yield f"{arm.exact(name):,}"
            continue
        cell = latex(with_spread(name, arm.spread(name))).replace("±", "$\\pm$")
        yield f"\\textbf{{{cell}}}" if name in better and cell else cell or "--"
