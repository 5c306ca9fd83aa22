"""Source text of each value of a Blueprint: trees of Nodes in the layout of resolved.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.shape import Side
from tfkit.recipe.architecture.distinct import DistinctLayers
from tfkit.recipe.architecture.pattern import PatternEntry
from tfkit.recipe.architecture.resolve import ModelResolver
from tfkit.recipe.architecture.stack_text import StackText
from tfkit.recipe.keys import MODEL, STACK
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import given, items, mapping
from tfkit.recipe.views.resolved import kind_names

OF_LAYERS = ("mask", "layer", "layers", "pattern")  # stack keys with another form in resolved.yaml


@dataclass(frozen=True)
class StackTrace:
    """Source text of one stack.

    `text` is the stack as written, with `encoder:` or `decoder:` merged; `node` has the keys of resolved.yaml;
    `layers` are the texts of all layers in order, `entries` their pattern entries.
    """

    text: StackText
    node: Node
    layers: Sequence[Node]
    entries: Sequence[PatternEntry]
    distinct: DistinctLayers

    @property
    def keys(self) -> Mapping[str, Node]:
        """The stack's keys as written."""
        return self.text.keys

    def layer(self, index: int, plan: LayerPlan) -> Node:
        """Return the source text of layer `index` with this plan."""
        return _layer(self.distinct, self.layers[index], plan)


@dataclass(frozen=True)
class Trace:
    """Source text of a model; `model` has the keys of resolved.yaml."""

    model: Node
    stacks: Mapping[Side, StackTrace]


def trace(resolver: ModelResolver, blueprint: Blueprint) -> Trace:
    """Return the text from which `resolver` built `blueprint`."""
    written = mapping(resolver.node)
    stacks = {plan.side: _stack(resolver, plan) for plan in blueprint.stacks()}
    children = {key: node for key, node in written.items() if key in MODEL and key not in ("encoder", "decoder")}
    for side, stack in stacks.items():
        children |= {side: stack.node} if len(stacks) > 1 else mapping(stack.node)
    heads = {} if resolver.heads is None else resolver.heads.written
    if "head" in children:
        children["head"] = heads.get("model.head", children["head"])
    named = {name: heads.get(node.path, node) for name, node in mapping(written.get("heads")).items()}
    if named:
        children["heads"] = replace(written["heads"], value=named)
    return Trace(replace(resolver.node, value=children), stacks)


def _stack(resolver: ModelResolver, plan: StackPlan) -> StackTrace:
    text, distinct = resolver.texts[plan.side], resolver.layers[plan.side]
    firsts = [distinct.texts[plan.order.index(kind)] for kind in range(len(plan.layers))]
    layers = [_layer(distinct, node, layer) for node, layer in zip(firsts, plan.layers, strict=True)]
    node = replace(resolver.node, value=_stack_nodes(text, plan, layers))
    return StackTrace(text, node, distinct.texts, resolver.entries[plan.side], distinct)


def _stack_nodes(text: StackText, plan: StackPlan, layers: Sequence[Node]) -> dict[str, Node]:
    keys = text.keys
    found = {name: node for name, node in keys.items() if name in STACK and name not in OF_LAYERS} | text.written
    if "pattern" in keys:
        found.setdefault("num_layers", keys["pattern"])
    held = _held(keys.get("position"), plan.max_length) if given(keys, "max_length") is None else None
    if held is not None:
        found["max_length"] = held
    names = kind_names(plan)
    if not names:
        return found | {"layer": layers[0]}
    found["layer"] = replace(text.node, value={"norm": node} if (node := layers[0].get("norm")) else {})
    found["layers"] = replace(text.node, value={name: layers[kinds[0]] for name, kinds in names.items()})
    return found | ({"pattern": keys["pattern"]} if "pattern" in keys else {})


def _held(positions: Node | None, length: int | None) -> Node | None:
    """Return a position's `max_length` if equal to `length`."""
    nodes = (given(mapping(item), "max_length") for item in items(positions))
    return next((node for node in nodes if node is not None and node.value == length), None)


def _layer(distinct: DistinctLayers, node: Node, plan: LayerPlan) -> Node:
    """Return the text of a layer, with the stack's position if it has none."""
    layer, of_stack = distinct.layers.written(node), distinct.layers.stack.written.get("position")
    if plan.position is not None or of_stack is None:
        return layer
    return replace(layer, value={**mapping(layer), "position": of_stack})
