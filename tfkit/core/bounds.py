"""The largest value of each kind of count, for recipes, studies, the command line and calls.

Every option that is a whole number has one of these bounds or a smaller one of its own: a value beyond it is refused
while it is read, before anything is computed or allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from annotated_types import Le
from pydantic.fields import FieldInfo


class Bound(NamedTuple):
    """The largest value of a kind of count, and the noun for it."""

    most: int
    counts: str


WIDTH = Bound(2**28, "widths, vocabularies, classes, `max_length`")
LAYERS = Bound(10_000, "layers of a stack")
HEADS = Bound(2**16, "heads")
EXPERTS = Bound(2**12, "experts of a layer")
COUNT = Bound(2**31, "steps, tokens, examples, ids")
SEED = Bound(2**32 - 1, "seeds")
ROWS = Bound(2**20, "sequences of a batch")
TEXTS = Bound(2**12, "beams and texts of a prompt")
DRAWN = Bound(10_000, "lengths, symbols and modulus of a generated corpus")
ORDER = Bound(100, "order of an n-gram")
SEEDS = Bound(1_000, "seeds of a study")
SIZES = Bound(20, "sizes of a ladder, and its budgets")
ARMS = Bound(1_000, "variants of a study")
TRIALS = Bound(10_000, "variants of a study times the values tuned")
JOBS = Bound(2**10, "trainings at a time")

BOUNDS = (WIDTH, LAYERS, HEADS, EXPERTS, COUNT, SEED, ROWS, TEXTS, DRAWN, ORDER, SEEDS, SIZES, ARMS, TRIALS, JOBS)


def bound_counts(fields: Iterable[FieldInfo]) -> bool:
    """Give each option that may be any whole number the bound of COUNT. Return True if there is one."""
    found = False
    for field in fields:
        if field.annotation is int and not any(hasattr(mark, "le") or hasattr(mark, "lt") for mark in field.metadata):
            field.metadata.append(Le(COUNT.most))
        elif (bounded := _bounded(field.annotation)) is not field.annotation and field.annotation is not int:
            field.annotation = bounded
        else:
            continue
        found = True
    return found


def _bounded(annotation: Any) -> Any:
    """Return the type with a bound on each plain `int` in it, in lists and tuples too."""
    if annotation is int:
        return Annotated[int, Le(COUNT.most)]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin not in (Union, UnionType, tuple, list):
        return annotation
    bounded = [_bounded(kind) for kind in inner]
    if all(new is old for new, old in zip(bounded, inner, strict=True)):
        return annotation
    return reduce(or_, bounded) if origin in (Union, UnionType) else origin[tuple(bounded)]
