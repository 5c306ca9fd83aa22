"""Layers with equal plans but different sizes, because their parts depend on the layer index (`shape.layer`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace

import torch

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.errors import UsageError
from tfkit.core.shape import Shape
from tfkit.core.skeleton import NoDraws
from tfkit.models.layer import Layer
from tfkit.models.sample import used_kinds

MOST = 256  # maximum number of layers built for comparison; in deeper stacks, only the first and last ones are compared
Sizes = tuple[tuple[str, tuple[int, ...], bool], ...]


@dataclass(frozen=True)
class _Watched(Shape):
    """A shape that records accesses to `layer`, including those through its copies."""

    reads: list[bool] = field(default_factory=list, compare=False, repr=False)

    def __getattribute__(self, name: str) -> object:
        if name == "layer" and sys._getframe(1).f_code.co_name not in ("replace", "_replace"):
            super().__getattribute__("reads").append(True)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class _WatchedPlan(StackPlan):
    """A plan whose shapes record accesses to `layer`."""

    reads: list[bool] = field(default_factory=list, compare=False, repr=False)

    def shape(self, layer: int = 0, plan: LayerPlan | None = None) -> Shape:
        shape = super().shape(layer, plan)
        facts = {entry.name: getattr(shape, entry.name) for entry in fields(Shape)}
        return _Watched(**facts, reads=self.reads)


def split_by_size(blueprint: Blueprint) -> Blueprint:
    """Return `blueprint` with a separate plan for each distinct layer size.

    Raise UsageError if too many layers would have to be built for the comparison.
    """
    encoder, decoder = (plan and _split_plan(plan) for plan in (blueprint.encoder, blueprint.decoder))
    return replace(blueprint, encoder=encoder, decoder=decoder)


def _split_plan(plan: StackPlan) -> StackPlan:
    facts = {entry.name: getattr(plan, entry.name) for entry in fields(StackPlan)}
    for kind in used_kinds(plan):
        watched = _WatchedPlan(**facts)
        _sizes(watched, kind, plan.order.index(kind))
        if watched.reads:
            plan = _split(plan, kind)
    return plan


def _split(plan: StackPlan, kind: int) -> StackPlan:
    """Add a plan for every additional size among the layers of a kind."""
    numbers = [number for number, other in enumerate(plan.order) if other == kind]
    few = numbers if len(numbers) <= MOST else [*numbers[: MOST // 2], *numbers[-MOST // 2 :]]
    owners = {number: _owner(plan, number) for number in few}
    sizes = {owner: _sizes(plan, kind, owner) for owner in dict.fromkeys(owners.values())}
    different = list(dict.fromkeys(sizes.values()))
    if len(different) == 1:
        return plan
    if len(numbers) > MOST:
        raise UsageError(f"a part has a different size in each layer, which is supported only up to {MOST:,} layers")
    kinds = dict(zip(different, [kind, *range(len(plan.layers), len(plan.layers) + len(different) - 1)], strict=True))
    order = list(plan.order)
    for number in numbers:
        order[number] = kinds[sizes[owners[number]]]
    return replace(plan, layers=(*plan.layers, *[plan.layers[kind]] * (len(different) - 1)), order=tuple(order))


def _owner(plan: StackPlan, number: int) -> int:
    """Return the index of the layer that owns the weights: its own, or that of the first layer that shares them."""
    if not plan.layers[plan.order[number]].shared:
        return number
    return next(first for first, entry in enumerate(plan.entries) if entry == plan.entries[number])


def _sizes(plan: StackPlan, kind: int, number: int) -> Sizes:
    """Return the name, shape and requires_grad of a layer's parameters and buffers."""
    with torch.device("meta"), NoDraws():
        layer = Layer(plan.layers[kind], plan, number)
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return tuple((name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors)
