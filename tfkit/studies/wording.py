"""Words for values, differences and verdicts, the comparison of sizes, and measures against costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from tfkit.core.output import counted
from tfkit.reports.formats import latex
from tfkit.studies.plan import EXACT
from tfkit.studies.results import ArmResult, Results, StudyContext, Table
from tfkit.studies.settings import at_size
from tfkit.studies.statistics import LEVEL, SEEDS, Comparison, Spread, compared, judged, number, spread

HELP = (
    "The difference of each variant from the baseline of the same {size}, and how it changes from the smallest {size} "
    "to the largest: the mean over seeds of the difference of differences, with its interval (t distribution, "
    "Bonferroni over the rows). Holds: it is beyond the noise at both ends, in the same direction, and does not "
    "shrink. Shrinks: it is beyond the noise at the smallest {size}, and its change is beyond the noise in the other "
    "direction. Reverses: it is beyond the noise at both ends, in opposite directions. Cannot tell: anything else."
)

FIXED = (
    "Each variant is compared with the baseline run by run: the same seed has the same order of data. The difference "
    "is the mean over pairs. Its variance is pooled over the variants, about additive effects of variant and seed, "
    "where their spreads agree (F tests), and is the pair's own otherwise, or for all pairs if these vary too "
    "unequally over seeds to be pooled, as near copies of a variant do (Bartlett's statistic, simulated). With fewer "
    "than 5 seeds a spread several times that of the others may be missed, and an equal mean be called different in "
    f"more than {LEVEL:.0%} of studies: a row with its own variance says: give it {SEEDS} seeds. p is by the t test"
)
LEAST_P = 1e-4  # smaller p are not printed: they depend on the tails of a distribution that is only assumed
POWERED = (
    "80 % power from: the smallest difference that would be found with a probability of 80 %; seeds needed: the number "
    "of seeds that gives the observed difference this power. "
)
RANKED = (
    "Identical differences give no verdict. A run that diverged or failed ranks last, and a variant with such runs is "
    "compared by the exact rank sum test (Wilcoxon 1945). ",
    "An option with which more runs diverge or fail than without it, by that test, is worse for that alone. ",
)  # of pairs, and of the options of a design
FOREST = (
    "A diamond is {diamond}, the bar its interval{dots}. The grey band is one standard deviation of the runs of "
    "{baseline} to both sides; its own dots are its runs about their mean. The axis is cut at what can be read: an "
    "arrow points to a difference, or an end of a bar, outside it."
)
CURVES = (
    "A line is the mean over seeds, its band reaches from the least to the most of them. Differences far outside those "
    "of most variants are cut."
)
EFFECTS = (
    "An effect is the mean of the runs with an option minus the mean of the runs without it: an average over the other "
    "options. The screen only chose which options to confirm; verdicts are by fresh runs alone."
)
PAIRS = "An interaction is the difference that one option makes to the effect of the other. It has no verdict."
ALIASES = (
    "An interaction of options may look like an effect of another one in the screen; (0.30): in part, as far as the "
    "two correlate. Of many, the three closest are named. The fresh runs are another design."
)
HALF_NORMAL = (
    "A dot is the effect of an option in the screen; filled: chosen. Without any effects the dots lie along the line, "
    "and in 95 % of screens all within the band (Daniel 1959; t distribution, Bonferroni). The standard errors are "
    "those of the fit, pooled with those by the baseline's runs where they agree (F test), and the greater otherwise."
)
FRONT = (
    "Means, or an arrow to one outside the picture, with a standard deviation over seeds to each side. A ring marks "
    "the Pareto front: no other variant is at least as good in both means, and beyond the noise better in one (paired "
    "t test of the two at 5 %, uncorrected)."
)
FITTED = (
    "The effects of the options that the screen chose are estimated in fresh runs by least squares, with interactions "
    "of two as far as they can be told apart; n is the number of runs with the option. The variance is that of the "
    "fit, pooled with that of the baseline's runs where they agree (F test), and the greater one otherwise. p is by "
    "the t test"
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

    @property
    def words(self) -> str:
        """The verdict with its reservations."""
        return self.verdict + "".join(dict.fromkeys(one.ending for one in self.by_size.values()))

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
    bases = {size: results.at(size).arms[0] for size in results.sizes}
    sizes = sorted(bases, key=lambda size: (bases[size].parameters, bases[size].steps))
    known = {one.arm: one for one in results.comparisons if one.measure == measure}
    names = [arm.name.removesuffix(f"@{arm.size}") for arm in results.own if sizes and arm.size == sizes[0]]
    for name in names:
        rows = {bases[size].place: known[at_size(name, size)] for size in sizes if at_size(name, size) in known}
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


COSTS = {"parameters": "parameters", "flops": "FLOPs of a token", "cache_bytes": "decode cache, bytes"}
COSTS |= {"seconds": "seconds of training", "peak_memory": "peak memory, bytes"}


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


KINDS = {"cannot tell": "noise", "equal": "noise", "not held": "not-held"}  # style of a verdict


def difference(one: Comparison) -> str:
    """Format the mean difference with its interval; empty without pairs."""
    if one.mean is None:
        return ""
    mean = signed(one.measure, one.mean)
    if one.low is None or one.high is None:
        return f"{mean} (one pair)" if one.n == 1 else f"{mean} (of {one.n} pairs)"
    return f"{mean} [{signed(one.measure, one.low)}, {signed(one.measure, one.high)}]"


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
    test = "t test of the effect" if results.design else "paired t test"
    return f"Better means {' or '.join(aims)} beyond the noise of the seeds: p below {LEVEL} by the {test}{holm}."


def answer(results: Results, measure: str) -> str:
    """Name the variants that are better and worse than the baseline on a measure, and count the others."""
    comparisons = [one for one in results.comparisons if one.measure == measure]
    sign = -1.0 if measure in results.rising else 1.0
    parts = []
    for verdict in ("better", "worse", "cannot tell", "equal", "diverged", "open"):
        own = sorted((one for one in comparisons if one.verdict == verdict), key=lambda one: sign * (one.mean or 0.0))
        names = f" ({', '.join(one.arm for one in own)})" if verdict in ("better", "worse", "diverged") else ""
        parts += [f"{len(own)} {verdict.replace('cannot tell', 'cannot be told apart')}{names}"] * bool(own)
    count, against = counted(len(comparisons), "variant"), f"against {results.arms[0].name}"
    if results.design is not None:
        (ended, planned), (_, fresh) = results.design.runs.values()
        if not comparisons:
            return f"On {measure}, nothing is known yet: {ended} of {planned} runs of the screen have ended."
        count, against = counted(len(comparisons), "option"), f"chosen by the screen, in {counted(fresh, 'fresh run')}"
    ending = "".join(dict.fromkeys(one.ending for one in comparisons))
    steps = sorted({arm.steps for arm in results.own} - {0}) if "." in measure else []  # costs have no .
    least = f"{steps[0]:,} to " * (len(steps) > 1) if steps else ""
    after = f" after {least}{counted(steps[-1], 'step')}" if steps else ""
    return f"On {measure}{after}, of {count} {against}: {'; '.join(parts)}{ending}."


def latex_table(results: Results) -> str:
    """Return a LaTeX table (booktabs) of means and standard deviations, in bold where better than the baseline."""
    arrows = [" $\\uparrow$" if name in results.rising else " $\\downarrow$" for name in results.measure]
    heads = [f"{latex(name)}{arrow}" for name, arrow in zip(results.measure, arrows, strict=True)]
    ending = {one.arm: one.ending for one in sorted(results.comparisons, key=lambda one: len(one.ending))}
    names = [latex(arm.name + ending.get(arm.name, "")) for arm in results.shown]
    cells = [_latex_cells(results, arm) for arm in results.shown]
    rows = [" & ".join([name, *own]) + r" \\" for name, own in zip(names, cells, strict=True)]
    lines = [
        "% " + latex(f"Bold: better than {results.arms[0].name}. {meaning(results)}"),
        f"% {'Effects; baseline: m' if results.design else 'M'}ean and standard deviation over seeds. Requires "
        "\\usepackage{booktabs}.",
        f"\\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
        " & ".join(["variant", *heads]) + r" \\",
        *(r"\midrule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cells(results: Results, arm: ArmResult) -> Iterator[str]:
    known = {one.measure: one for one in results.comparisons if one.arm == arm.name}
    for name in results.measure:
        if name in EXACT:
            yield f"{arm.exact(name):,}" if arm.cells else "--"
            continue
        shown = with_spread(name, arm.spread(name)) if arm.cells else difference(known[name])
        cell = latex(shown).replace("±", "$\\pm$")
        yield f"\\textbf{{{cell}}}" if name in known and known[name].verdict == "better" and cell else cell or "--"


def method(results: Results) -> str:
    """Describe the statistics."""
    of_design = results.design is not None
    holm = f"after Holm's correction over all {results.tested} comparisons here (Holm 1979). "
    return (
        f"{FITTED if of_design else FIXED} {holm}Better or worse: p is below {LEVEL}. Cannot tell: it is "
        "not, and would be for the difference named. Equal: the whole interval lies within the margin that the "
        "study sets. The intervals hold at once with 95 % (Bonferroni), are cut at the bounds of the measure "
        "(percentages, and measures that are at least 0), and end at 0 where a later step of Holm's procedure "
        "excludes it. The standard deviation of the differences is at least a step of the measure: one example of "
        "an accuracy, or half a unit of the last printed digit. "
        f"{POWERED}{RANKED[of_design]}Verdicts are given when all planned runs have "
        "ended, and not on runs whose files were altered. A claim is held or not held where its comparison is "
        "beyond the noise, and open otherwise."
    )
