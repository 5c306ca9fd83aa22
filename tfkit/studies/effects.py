"""Effects of options by least squares over the runs of a design, and their tests in the confirming runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from tfkit.core.errors import optional
from tfkit.studies import statistics
from tfkit.studies.design import Cells, Groups
from tfkit.studies.statistics import EQUAL, LEVEL, Array, Comparison, Scale, half_digit

Names = Sequence[str]
Values = Sequence[float | None]  # None: diverged
INTERACTING, NOISIER = 0.05, 0.25  # levels of the F tests of `_noise`
TELLING = 4  # number of diverged runs from which an exact test can find more of them with an option
ROUNDING = 1e-6


@dataclass(frozen=True)
class Effect:
    """Difference that an option makes, averaged over the runs that ended; `a × b`: that b makes to the effect of a.

    `mean` and `error` are None if the runs do not determine them; `n` runs with the option ended.
    """

    name: str
    mean: float | None
    error: float | None
    freedom: int
    n: int


def effects(
    cells: Cells, values: Values, names: Names, pairs: bool = False, noise: Sequence[float] = (), floor: float = 0.0
) -> list[Effect]:
    """Estimate the effects of options, and of as many `pairs` as the runs determine, by least squares.

    `noise` are runs of one cell, `floor` is the minimum standard deviation of a run.
    """
    sets = [some for size in range(1, 2 + pairs) for some in combinations(range(len(names)), size)]
    scores = np.array(values, float)  # None becomes nan
    present = np.array([[name in cell for name in names] for cell in cells], float)[~np.isnan(scores)]
    y, centered, mains = scores[~np.isnan(scores)], present - present.sum(0) / max(1, len(present)), len(names) + 1
    x = np.column_stack([np.ones(len(y)), *(centered[:, some].prod(1) for some in sets)])
    used = list[int]()
    for place in range(x.shape[1]):
        if np.linalg.matrix_rank(x[:, [*used, place]], ROUNDING) > len(used):
            used.append(place)
    fits = [x[:, [place for place in used if place < end]] for end in (x.shape[1], mains)]
    rests = [y - fit @ (np.linalg.pinv(fit) @ y) for fit in fits]
    residual, without = (np.array([rest @ rest, len(y) - fit.shape[1]]) for rest, fit in zip(rests, fits, strict=True))
    sd, freedom = _noise(residual, without - residual, noise)
    sd = max(sd, floor) if sd > EQUAL * np.abs(y).max(initial=0.0) else 0.0
    rows = dict(zip(used, np.linalg.pinv(fits[0]), strict=True))
    # an effect is known if no change of the coefficients that leaves the fit as it is changes it
    known = [np.isclose((np.linalg.pinv(part, ROUNDING) @ part).diagonal(), 1.0) for part in (x[:, :mains], x)]
    found = []
    for place, some in enumerate(sets, 1):
        row = rows[place] if known[len(some) - 1][place] else None
        error = None if row is None or not freedom else sd * float(np.linalg.norm(row))
        name, n = " × ".join(names[i] for i in some), int(present[:, some].prod(1).sum())
        found.append(Effect(name, None if row is None else float(row @ y), error, freedom, n))
    return found


def _noise(residual: Array, crossed: Array, noise: Sequence[float]) -> tuple[float, int]:
    """Return the standard deviation of a run and its degrees of freedom, from sums of squares with theirs.

    The residual and the pairs are pooled; if one is larger, it contains interactions and the other is used. They are
    pooled with the runs of one cell unless they vary more.
    """
    fisher = optional("scipy.stats", "study", "F tests need").f

    def exceeds(one: Array, other: Array, level: float) -> bool:
        (a, n), (b, m) = one, other
        return bool(n and m and fisher.sf(a / n / max(b / m, 1e-300), n, m) < level)

    base = np.array([np.var(noise) * len(noise), len(noise) - 1]) if noise else np.zeros(2)
    smaller = [one for one, other in ((residual, crossed), (crossed, residual)) if exceeds(other, one, INTERACTING)]
    cells = smaller[0] if smaller else residual + crossed
    squares, freedom = cells if exceeds(cells, base, NOISIER) else cells + base
    return math.sqrt(max(squares, 0.0) / max(freedom, 1)), int(freedom)


def largest(found: Sequence[Effect], groups: Groups, most: int) -> list[str]:
    """Return the options with the largest effects in standard errors, at most one of a group."""
    group_of = {option: place for place, group in enumerate(groups) for option in group}
    order = sorted(found, key=lambda one: -abs(one.mean or 0.0) / (one.error or 1.0))
    names = [one.name for one in order if one.mean is not None]
    first = {group_of[name]: name for name in reversed(names)}
    return [name for name in names if name in first.values()][:most]


def interactions(cells: Cells, values: Values, options: Names, noise: Sequence[float] = ()) -> list[Effect]:
    """Estimate the effects of pairs of options."""
    return effects(cells, values, options, True, noise)[len(options) :]


def confirmed(
    measure: str, cells: Cells, values: Values, options: Names, noise: Sequence[float], scale: Scale
) -> list[Comparison]:
    """Compare each option with its absence, by its effect or by how often it diverges; `judged` corrects the p-values.

    If two options diverge whenever they are combined and not otherwise, this counts for neither.
    """
    y, present = np.array(values, float), np.array([[option in cell for cell in cells] for option in options])
    lost, apart, comparisons = np.isnan(y), np.zeros(len(y), bool), []
    for one, other in combinations(present, 2):
        if lost[one & other].all() and not lost[one].all() and not lost[other].all():
            apart |= one & other
    tests = 1 if (lost & ~apart).sum() < TELLING else 2
    floor = max(scale.step, half_digit(float(np.abs(y[~lost]).max(initial=0.0)))) / math.sqrt(2)
    for effect, has in zip(effects(cells, values, options, True, noise, floor), present, strict=False):
        counts = [int(side.sum()) for side in (has, lost & has, lost & ~has)]
        result = Comparison(effect.name, "without", measure, effect.n, counts[0], effect.mean, margin=scale.margin)
        result = replace(result, diverged=counts[1], diverged_against=counts[2])
        fates = [[float(gone) for gone in lost[side & ~apart]] for side in (has, ~has)]
        p, ahead = statistics.rank_sum_test(fates[0], fates[1], rising=False) if tests > 1 else (1.0, False)
        if tests * p < LEVEL:
            result = replace(result, by_rank=True, p=tests * p, ahead=ahead)
        elif effect.mean is None or effect.error is None:
            result = replace(result, problem="too few runs ended")
        elif effect.error > 0:  # runs that ended look better than all would, by up to a standard deviation
            shares = [sum(fate) / max(len(fate), 1) for fate in fates]
            flattered = max(0.0, (shares[0] - shares[1]) * (1 if (effect.mean > 0) == scale.rising else -1))
            error = effect.error * (1 + flattered * math.sqrt((~lost).sum()) / 2)
            p = min(1.0, tests * float(statistics.two_sided(effect.mean, error, effect.freedom)))
            bounds = statistics.bounds_of(measure, list(y[has & ~lost]), list(y[~has & ~lost]), scale.rising)
            result = replace(result, error=error, freedom=effect.freedom, p=p, bounds=bounds)
        comparisons.append(result)
    return comparisons
