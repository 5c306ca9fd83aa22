"""Costs of arms, and the Pareto front of a measure and a cost, considering the noise between seeds."""

from __future__ import annotations

from functools import cache

from tfkit.studies.plan import EXACT
from tfkit.studies.results import ArmResult, Results, StudyContext, Table
from tfkit.studies.statistics import LEVEL, Spread, spread

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
