"""Equal budgets: solve for the value of a key at which an arm has the parameters or FLOPs of the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from tfkit.core.errors import RecipeError, TfkitError, UsageError
from tfkit.reports.counts import count_parameters
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.settings import STEPS, Match

LARGEST = 2**22  # maximum width to try
NEIGHBOURS = 64  # further values to try after an invalid one: widths must be divisible by heads
CLOSE = 0.02  # maximum relative difference of the counts


def matched(source: StudySource, arm: Arm, match: Match, baseline: Arm, start: int) -> Arm:
    """Return the arm with the value of the key that matches the baseline; raise UsageError if there is none."""
    if match.key == STEPS:  # FLOPs of the whole training
        arm = arm.counted(source)
        value = max(1, round(start * baseline.flops / arm.flops))
        return replace(arm, solved={STEPS: value}, steps=value)
    target = baseline.parameters if match.what == "parameters" else baseline.flops
    refusals: list[TfkitError] = []

    @cache
    def count_of(value: int) -> int | None:
        """Count the matched quantity for a value of the key; None if it makes the recipe invalid."""
        try:
            recipe = source.recipe(arm.variants, {**arm.values, match.key: value})
            if match.what == "parameters":
                return count_parameters(source.blueprint(recipe))
            return source.count(recipe).flops_per_token
        except (RecipeError, UsageError) as error:
            refusals.append(error)
        return None

    nearest = nearest_value(count_of, target, start)
    reached = None if nearest is None else count_of(nearest)
    if nearest is None or reached is None:
        raise UsageError(f"study.match: '{arm.name}' cannot be counted: {match.key}: {refusals[-1]}")
    if abs(reached - target) > CLOSE * target:
        raise UsageError(
            f"study.match: '{arm.name}' cannot have the {target:,} {match.what} of the baseline: the nearest is "
            f"{match.key}: {nearest} with {reached:,}"
        )
    return replace(arm, solved={match.key: nearest}).counted(source)


def nearest_value(count_of: Callable[[int], int | None], target: int, start: int) -> int | None:
    """Return the integer whose count is nearest to `target`, assuming that counts increase; None if none is valid."""

    def is_above(value: int) -> bool:
        right = _right(count_of, value)
        return right is None or (count_of(right) or 0) > target

    low, high = 1, start
    while not is_above(high) and high < LARGEST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    found = [value for value in (_right(count_of, low), _right(count_of, high)) if value is not None]
    return min(found, key=lambda value: abs((count_of(value) or 0) - target), default=None)


def _right(count_of: Callable[[int], int | None], first: int) -> int | None:
    """Return the smallest valid value that is at least `first`; None if the next few values are invalid."""
    return next((value for value in range(first, first + NEIGHBOURS + 1) if count_of(value) is not None), None)
