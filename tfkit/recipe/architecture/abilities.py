"""Capabilities that parts of a layer require of each other, checked by the rule table during validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tfkit.core.blueprint import LayerPlan
from tfkit.core.component import Config
from tfkit.core.errors import Place
from tfkit.recipe.architecture.masks import written_masks
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.architecture.stack_text import LayerText
from tfkit.recipe.rules import Part, asked_by, fact, reason
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import items


def check_layer(layer: LayerText, plan: LayerPlan) -> None:
    """Refuse parts that do not support the layer's direction, masks or positions."""
    own = list(_parts(layer, plan))
    direction = fact("a causal layer" if plan.causal else "a layer that sees both ways")
    for part, node in own:
        if direction.refuses(part):
            layer.faults.add(node, reason(direction, part))
    if any(sublayer.memory for sublayer in plan.sublayers) and (memory := fact("a memory")).refuses(plan.residual.part):
        layer.faults.add(_text(layer, "residual"), reason(memory, plan.residual.part))
    for asker, place in _askers(layer, plan):
        for rule in asked_by(asker):
            if rule.capability == direction.capability:
                continue  # of a mask that makes the layer causal, already reported for the layer
            for part, node in own:
                if rule.refuses(part):
                    layer.faults.add(node, f"{reason(rule, part, asker.part)} (see {place})")
    _check_taken(layer, [part for part, _ in own])


def _parts(layer: LayerText, plan: LayerPlan) -> Iterator[tuple[Part, Node]]:
    """Yield the parts applied to the layer's own tokens, with their nodes; not those that read a memory."""
    for sublayer in plan.sublayers:
        if not sublayer.memory:
            yield sublayer.config.part, _text(layer, sublayer.name)
        if sublayer.norm is not None:
            yield sublayer.norm.part, _text(layer, f"{sublayer.name}_norm", "norm")
    yield plan.residual.part, _text(layer, "residual")
    for config, node in _positions(layer, plan):
        yield config.part, node


def _text(layer: LayerText, *keys: str) -> Node:
    """Return the node of a part: the first existing of `keys`, or the sublayer's name without its number."""
    for key in (*keys, keys[0].rpartition("_")[0]):
        if key in layer.keys:
            return layer.keys[key]
    return layer.node


def _positions(layer: LayerText, plan: LayerPlan) -> Iterator[tuple[Config, Node]]:
    """Yield the positions of the layer, its own or the stack's, with their nodes."""
    if plan.position is not None:
        yield from zip(plan.position, items(layer.keys.get("position")), strict=False)  # one may have a fault
    else:
        yield from _right(items(layer.stack.keys.get("position")), "position")


def _right(nodes: Iterable[Node], slot: str) -> Iterator[tuple[Config, Node]]:
    """Yield the valid parts; faults are reported elsewhere."""
    preparer = Preparer(Faults())
    for node in nodes:
        config = None if node.value is None else preparer.config(node, slot)
        if config is not None:
            yield config, node


def _askers(layer: LayerText, plan: LayerPlan) -> Iterator[tuple[Config, Place]]:
    """Yield the parts with requirements, each with its place."""
    masks = _right(written_masks(layer.stack, layer.keys), "mask")
    for config, node in chain(masks, _positions(layer, plan)):
        yield config, node.place


def _check_taken(layer: LayerText, parts: list[Part]) -> None:
    """Refuse a layer's own position that no part of the layer would use."""
    if any(part.part_slot == "attention" for part in parts):
        return
    for item in items(layer.keys.get("position")):
        text = "the layer has no attention over its own tokens, so nothing would take this position; say position: none"
        layer.faults.add(item, text)
