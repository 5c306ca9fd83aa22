"""Many cases of one rule: shared between the quick and the slow run, or all in one test that names the failed ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

EVERY = 3  # one in so many is at most full
QUICK = 4  # of these, one in so many is quick


def some(cases: Iterable[Any], every: int = EVERY) -> list[Any]:
    """Spread the cases of one argument over the tiers: by default one in 12 is quick, one in 3 full, the rest slow."""
    return some_rows(((case,) for case in cases), every)


def some_rows(rows: Iterable[tuple[Any, ...]], every: int = EVERY) -> list[Any]:
    """Spread cases of several arguments over the tiers."""
    return [pytest.param(*row, marks=_tier(number, every)) for number, row in enumerate(rows)]


def _tier(number: int, every: int) -> list[pytest.MarkDecorator]:
    if number % every:
        return [pytest.mark.slow]
    return [pytest.mark.full] if number % (every * QUICK) else []


def shares(cases: Iterable[Any], every: int = EVERY) -> list[Any]:
    """Split the cases of `each` into `every` lists, of which the first is quick and the others are slow."""
    found = list(cases)
    slow = pytest.mark.slow
    return [pytest.param(found[part::every], id=str(part), marks=[slow] if part else []) for part in range(every)]


def each(cases: Iterable[Any], check: Callable[..., object]) -> None:
    """Call `check` with every case (a tuple is unpacked); raise one AssertionError that names each failed case.

    Its cause is the first failure, with the traceback. A loop without cases fails. If every case is skipped, so is the
    test.
    """
    count, faults, skips = 0, {}, []
    for count, case in enumerate(cases, 1):
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except pytest.skip.Exception as error:
            skips.append(error)
        except (Exception, pytest.fail.Exception) as error:
            faults[f"{count}. {repr(case)[:300]}: {type(error).__name__}: {error}"] = error
    if skips and len(skips) == count:
        raise skips[0]
    if faults or not count:
        first = next(iter(faults.values()), None)
        raise AssertionError("\n".join([f"{len(faults)} of {count} cases failed", *faults])) from first


def looped(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Parametrize a test, as pytest does, but try all cases in one test. They share its other fixtures."""

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        signature = inspect.signature(test)
        rows = [(case,) for case in cases] if isinstance(names, str) else list(cases)
        arguments = (names,) if isinstance(names, str) else names

        @wraps(test)
        def loop(**fixtures: Any) -> None:
            each(rows, lambda *case: test(**fixtures, **dict(zip(arguments, case, strict=True))))

        others = [one for name, one in signature.parameters.items() if name not in arguments]
        loop.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return loop

    return decorate
