"""Formatting of values, differences and verdicts for pages, terminals and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tfkit.core.machine import readable_bytes
from tfkit.reports.formats import latex
from tfkit.studies.plan import EXACT
from tfkit.studies.results import ArmResult, Results
from tfkit.studies.statistics import LEVEL, Comparison, Spread

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
