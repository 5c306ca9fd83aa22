"""Alignment of the layers of two stacks, which may differ in depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from tfkit.core.blueprint import LayerPlan, StackPlan
from tfkit.recipe.views.runs import Runs, places


class Pair(NamedTuple):
    """A run of consecutive aligned layers: their plans, and the first and last index in each stack."""

    before: LayerPlan
    after: LayerPlan
    here: tuple[int, int]
    there: tuple[int, int]


class Alignment(NamedTuple):
    """The layers of two stacks: aligned pairs, and layers without a counterpart."""

    pairs: list[Pair]
    only_before: list[tuple[LayerPlan, Runs]]
    only_after: list[tuple[LayerPlan, Runs]]


def align(before: StackPlan, after: StackPlan) -> Alignment:
    """Align two stacks, by index if they are equally deep.

    Otherwise match layers of equal structure from both ends, and the layers in between by index; excess layers of the
    deeper stack stay unmatched.
    """
    first, second = before.num_layers, after.num_layers
    shorter, end = min(first, second), 0
    if first != second:
        kinds: list[object] = []
        here, there = _outlines(before, kinds), _outlines(after, kinds)
        start = _equal(here, there)
        end = min(_equal(here[::-1], there[::-1]), shorter - start)
    start = shorter - end  # pair the remaining layers by index
    pairs = [*_pairs(before, after, 0, 0, start), *_pairs(before, after, first - end, second - end, end)]
    return Alignment(pairs, _left(before, start, first - end), _left(after, start, second - end))


def _outlines(plan: StackPlan, kinds: list[object]) -> list[int]:
    """Return an index into `kinds` for each layer, ignoring options."""
    numbers = []
    for layer in plan.layers:
        parts = [(sublayer.name, sublayer.config.part) for sublayer in layer.sublayers]
        outline = layer.residual.part, parts, layer.mask, layer.position
        if outline not in kinds:
            kinds.append(outline)
        numbers.append(kinds.index(outline))
    return [numbers[kind] for kind in plan.order]


def _equal(first: Sequence[int], second: Sequence[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


def _pairs(before: StackPlan, after: StackPlan, here: int, there: int, count: int) -> Iterator[Pair]:
    """Pair `count` layers, starting at index `here` in one stack and at `there` in the other."""
    kinds = zip(before.order[here : here + count], after.order[there : there + count], strict=True)
    for (one, other), same in groupby(kinds):
        length = len(list(same))
        yield Pair(before.layers[one], after.layers[other], (here, here + length - 1), (there, there + length - 1))
        here, there = here + length, there + length


def _left(plan: StackPlan, first: int, after: int) -> list[tuple[LayerPlan, Runs]]:
    """Group the layers with the same plan among the indices in [first, after)."""
    found = places(plan.order[first:after]).items()
    return [(plan.layers[kind], [(first + one, first + last) for one, last in runs]) for kind, runs in found]
