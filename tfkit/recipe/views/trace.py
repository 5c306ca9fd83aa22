"""The text that each value of a Blueprint comes from: trees of Nodes in the layout of resolved.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.component import Config
from tfkit.core.shape import Side
from tfkit.core.slots import HeadFacts
from tfkit.recipe.architecture.masks import written_masks
from tfkit.recipe.architecture.pattern import PatternEntry
from tfkit.recipe.architecture.positions import layer_position_text
from tfkit.recipe.architecture.prepare import Preparer, stack_norm
from tfkit.recipe.architecture.resolve import ModelResolver, final_norm_text
from tfkit.recipe.architecture.stack_text import LayerText, StackText
from tfkit.recipe.architecture.sublayers import SUBLAYERS, sublayer_norm_text, sublayer_text
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import given, items, mapping
from tfkit.recipe.views.resolved import kind_names, spelled_masks


@dataclass(frozen=True)
class StackTrace:
    """Where one stack comes from.

    `text` is the stack as written, `encoder:` or `decoder:` laid in; `node` has the keys of resolved.yaml; `layers` are
    the texts of all layers in order, and `entries` the kinds that made them.
    """

    text: StackText
    node: Node
    layers: Sequence[Node]
    entries: Sequence[PatternEntry]

    @property
    def keys(self) -> Mapping[str, Node]:
        """The stack's keys as written."""
        return self.text.keys

    def layer(self, index: int, plan: LayerPlan) -> Node:
        """Where layer `index`, which `plan` describes, comes from."""
        return _layer(self.text, self.layers[index], plan)


@dataclass(frozen=True)
class Trace:
    """Where a whole model comes from; `model` has the keys of resolved.yaml."""

    model: Node
    stacks: Mapping[Side, StackTrace]


def trace(resolver: ModelResolver, blueprint: Blueprint) -> Trace:
    """The text that `blueprint` was made from, by `resolver`."""
    stacks = {plan.side: _stack(resolver, plan) for plan in blueprint.stacks()}
    children = {key: node for key, node in mapping(resolver.node).items() if key in ("type", "init", "special_ids")}
    for side, stack in stacks.items():
        children |= {side: stack.node} if len(stacks) > 1 else mapping(stack.node)
    written = mapping(resolver.node)
    heads = {"head": blueprint.head, **dict(blueprint.heads)}
    named = {
        name: _head(resolver, blueprint, node, heads.get(name)) for name, node in mapping(written.get("heads")).items()
    }
    if named:
        children["heads"] = replace(written["heads"], value=named)
    if "head" in written:
        children["head"] = _head(resolver, blueprint, written["head"], blueprint.head)
    return Trace(replace(resolver.node, value=children), stacks)


def _head(resolver: ModelResolver, blueprint: Blueprint, node: Node, head: HeadFacts.Config | None) -> Node:
    if head is None:
        return node
    side = blueprint.read_by(head).side
    return Preparer(Faults(), stack_norm(resolver.stacks[side])).part(node, "head")


def _stack(resolver: ModelResolver, plan: StackPlan) -> StackTrace:
    text = resolver.texts[plan.side]
    distinct = resolver.layers[plan.side]
    layers = [_layer(text, node, layer) for node, layer in zip(distinct.nodes, plan.layers, strict=True)]
    node = replace(resolver.node, value=_stack_nodes(text, plan, layers))
    return StackTrace(text, node, distinct.texts, resolver.entries[plan.side])


def _stack_nodes(text: StackText, plan: StackPlan, layers: Sequence[Node]) -> dict[str, Node]:
    keys, preparer = text.keys, Preparer(Faults(), stack_norm(text.keys))
    sizes = ("d_model", "vocab_size", "max_length", "memory", "final_dropout")
    found: dict[str, Node | None] = {key: keys.get(key) for key in sizes}
    found["num_layers"] = keys.get("num_layers", keys.get("pattern"))
    if given(keys, "max_length") is None:
        found["max_length"] = _held(keys.get("position"), plan.max_length) or keys.get("max_length")
    embedding = keys.get("embedding")
    found["embedding"] = None if embedding is None else preparer.part(embedding, "embedding")
    found["position"] = _parts(keys.get("position"), preparer, "position")
    found["final_norm"] = final_norm_text(plan, keys, Faults())
    names = kind_names(plan)
    if names:
        found["layer"] = replace(text.node, value={"norm": node} if (node := layers[0].get("norm")) else {})
        found["layers"] = replace(text.node, value={name: layers[kinds[0]] for name, kinds in names.items()})
        found["pattern"] = keys.get("pattern")
    else:
        found["layer"] = layers[0]
    return {key: node for key, node in found.items() if node is not None}


def _held(positions: Node | None, length: int | None) -> Node | None:
    """Where a position says that it holds texts of that `length`."""
    said = (given(mapping(item), "max_length") for item in items(positions))
    return next((node for node in said if node is not None and node.value == length), None)


def _layer(stack: StackText, node: Node, plan: LayerPlan) -> Node:
    """The text of one layer, every part of it prepared as it was when it was resolved."""
    keys, norm = mapping(node), given(mapping(node), "norm")
    text = LayerText(stack, node, stack.plan.shape(), Preparer(Faults(), norm))
    found: dict[str, Node | None] = {
        key: keys.get(key) for key in ("residual", "norm", "dropout", "shared", "sublayers")
    }
    found["mask"] = _masks(text, plan)
    if plan.position is None:
        found["position"] = _parts(stack.keys.get("position"), text.preparer, "position")
    else:
        found["position"] = _parts(layer_position_text(text), text.preparer, "position")
    for sublayer in plan.sublayers:
        base = re.sub(r"_\d+$", "", sublayer.name)
        said = sublayer_text(keys, sublayer.name, base, text.faults)
        found[sublayer.name] = None if said is None else text.preparer.part(said, SUBLAYERS[base])
        found[f"{sublayer.name}_norm"] = sublayer_norm_text(text, sublayer.name, base)
    return replace(node, value={key: child for key, child in found.items() if child is not None})


def _masks(text: LayerText, plan: LayerPlan) -> Node | None:
    """The text of the rules that are spelled out, each where it is first said."""
    preparer = Preparer(Faults())
    said: dict[Config | None, Node] = {}
    for node in written_masks(text.stack, text.keys):
        said.setdefault(preparer.config(node, "mask"), preparer.part(node, "mask"))
    nodes = [said[rule] for rule in spelled_masks(plan, text.stack.causal) if rule in said]
    return nodes[0] if len(nodes) == 1 else _list(text.keys.get("mask", text.stack.keys.get("mask")), nodes)


def _parts(node: Node | None, preparer: Preparer, slot: str) -> Node | None:
    """The text of one part, a list of them, or none, in the shape that resolved.yaml gives it."""
    nodes = [preparer.part(item, slot) for item in items(node)]
    return nodes[0] if len(nodes) == 1 else _list(node, nodes)


def _list(node: Node | None, items: list[Node]) -> Node | None:
    return node if node is None or not items else replace(node, value=items)
