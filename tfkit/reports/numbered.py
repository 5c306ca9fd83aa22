"""Layers of one description that are not equal: their parts size weights by the layer's number (`shape.layer`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.errors import UsageError
from tfkit.core.shape import Shape
from tfkit.core.skeleton import NoDraws
from tfkit.models.layer import Layer
from tfkit.models.sample import used_kinds

MOST = 256  # layers of one description that are built to be compared; of more, those at both ends
Sizes = tuple[tuple[str, tuple[int, ...], bool], ...]


@dataclass(frozen=True)
class _Watched(Shape):
    """A Shape that notes whether its layer's number is read; copies of it note it at the same place."""

    noted: list[bool] = field(default_factory=list, compare=False, repr=False)

    def __getattribute__(self, name: str) -> Any:
        if name == "layer" and sys._getframe(1).f_code.co_name not in ("replace", "_replace"):
            super().__getattribute__("noted").append(True)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class _WatchedPlan(StackPlan):
    """A plan whose shapes are watched."""

    noted: list[bool] = field(default_factory=list, compare=False, repr=False)

    def shape(self, layer: int = 0, plan: LayerPlan | None = None) -> Shape:
        shape = super().shape(layer, plan)
        facts = {entry.name: getattr(shape, entry.name) for entry in fields(Shape)}
        return _Watched(**facts, noted=self.noted)


def told_apart(blueprint: Blueprint) -> Blueprint:
    """`blueprint` with a description for each layer whose parts have other sizes; the same where none has.

    Raises UsageError for more such layers than can be built to be compared.
    """
    encoder, decoder = (plan and _told_apart(plan) for plan in (blueprint.encoder, blueprint.decoder))
    return replace(blueprint, encoder=encoder, decoder=decoder)


def _told_apart(plan: StackPlan) -> StackPlan:
    facts = {entry.name: getattr(plan, entry.name) for entry in fields(StackPlan)}
    for kind in used_kinds(plan):
        watched = _WatchedPlan(**facts)
        _sizes(watched, kind, plan.order.index(kind))
        if watched.noted:
            plan = _split(plan, kind)
    return plan


def _split(plan: StackPlan, kind: int) -> StackPlan:
    """`plan` with one more description for each other size that the layers of that kind have."""
    numbers = [number for number, other in enumerate(plan.order) if other == kind]
    few = numbers if len(numbers) <= MOST else [*numbers[: MOST // 2], *numbers[-MOST // 2 :]]
    owners = {number: _owner(plan, number) for number in few}
    sizes = {owner: _sizes(plan, kind, owner) for owner in dict.fromkeys(owners.values())}
    different = list(dict.fromkeys(sizes.values()))
    if len(different) == 1:
        return plan
    if len(numbers) > MOST:
        raise UsageError(f"a part has other sizes in each layer, which can be counted of {MOST:,} layers at most")
    kinds = dict(zip(different, [kind, *range(len(plan.layers), len(plan.layers) + len(different) - 1)], strict=True))
    order = list(plan.order)
    for number in numbers:
        order[number] = kinds[sizes[owners[number]]]
    return replace(plan, layers=(*plan.layers, *[plan.layers[kind]] * (len(different) - 1)), order=tuple(order))


def _owner(plan: StackPlan, number: int) -> int:
    """The layer whose weights a layer has: its own, or the first of a pattern entry that shares one set."""
    if not plan.layers[plan.order[number]].shared:
        return number
    return next(first for first, entry in enumerate(plan.entries) if entry == plan.entries[number])


def _sizes(plan: StackPlan, kind: int, number: int) -> Sizes:
    """The weights and buffers of a layer, by name, with their shapes and whether they are trained."""
    with torch.device("meta"), NoDraws():
        layer = Layer(plan.layers[kind], plan, number)
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return tuple((name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors)
