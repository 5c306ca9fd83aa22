"""Masks (rule R4) and positions (rule R7) of a layer, and whether its parts support them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tfkit.core.blueprint import LayerPlan, StackPlan, SublayerPlan
from tfkit.core.component import Config, Problem
from tfkit.core.errors import Place
from tfkit.core.shape import Shape
from tfkit.core.slots import AttentionFacts, MaskFacts, PositionFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer, validated
from tfkit.recipe.architecture.stack import LayerText, StackText
from tfkit.recipe.overlays import merge
from tfkit.recipe.rules import Part, asked_by, fact, reason
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, given, items, one_or_list


def layer_masks(stack: StackText, keys: Mapping[str, Node]) -> tuple[tuple[MaskFacts.Config, ...], Node | None]:
    """Return all rules of a layer without duplicates, and the text of explicit ones; `none` drops the stack's."""
    preparer = Preparer(stack.faults)
    written = [replace(stack.node, value="causal")] if stack.causal else []
    by_type = [of_kind(validated(node, "mask", stack.faults), MaskFacts.Config) for node in written]
    nodes = written_masks(stack, keys)
    read = [preparer.read(node, "mask") for node in nodes]
    rules = [of_kind(config, MaskFacts.Config) for config, _ in read]
    causal = stack.causal or any(rule is not None and rule.part.hides_future for rule in rules)
    for node, rule in zip(nodes, rules, strict=True):
        if rule is not None:
            stack.faults.problems(node, rule.check(replace(stack.plan.shape(), causal=causal)))
    masks = tuple(dict.fromkeys(rule for rule in (*by_type, *rules) if rule is not None))
    nodes_by_rule: dict[Config | None, Node] = {}
    for config, node in read:
        nodes_by_rule.setdefault(config, node)
    spelled = [nodes_by_rule[rule] for rule in spelled_masks(masks, stack.causal) if rule in nodes_by_rule]
    return masks, one_or_list(keys.get("mask", stack.keys.get("mask")), spelled)


def spelled_masks(masks: Sequence[MaskFacts.Config], causal: bool) -> list[MaskFacts.Config]:
    """Return the rules to be written; `causal` is set if the model's type implies that rule."""
    return [rule for rule in masks if not (causal and rule.part.part_name == "causal")]


def hide_future(masks: Sequence[MaskFacts.Config]) -> bool:
    """True if a limit among the masks hides the future."""
    return any(rule.part.hides_future and not rule.part.opens for rule in masks)


def check_opposed(layer: LayerText, masks: Sequence[MaskFacts.Config]) -> None:
    """Refuse masks that together show each token only itself."""
    if {"causal", "reverse_causal"} <= {rule.part.part_name for rule in masks}:
        written = [*items(layer.keys.get("mask")), *items(layer.stack.keys.get("mask"))]
        node = next((item for item in written if _type_of(item) == "reverse_causal"), layer.node)
        layer.faults.add(node, "causal and reverse_causal on one layer leave each token only itself")


def written_masks(stack: StackText, keys: Mapping[str, Node]) -> list[Node]:
    """Return the nodes of a layer's masks, except the one implied by the model's type."""
    own = keys.get("mask")
    if own is not None and own.value is None:
        return []
    return items(stack.keys.get("mask")) + items(own)


def _type_of(node: Node) -> object:
    name = node.get("type")
    return node.value if name is None else name.value


def stack_positions(
    node: Node | None, plan: StackPlan, width: int, preparer: Preparer
) -> tuple[tuple[PositionFacts.Config, ...], Node | None]:
    """Return the stack's positions, used by all layers without their own, and their parsed text.

    `plan` has the layers, or none if these have faults; `width` is the width at which positions are added.
    """
    served = [layer.sublayers for layer in plan.layers if layer.position is None]
    dims = sorted({dim for sublayers in served for dim in _head_dims(sublayers, plan.shape())})
    positions, written = [], []
    for item in items(node):
        config, text = _read(item, preparer)
        written.append(text)
        if config is None:
            continue
        positions.append(config)
        # biases and rotations are only checked if the layers have no faults
        if plan.layers or not {"bias", "rotation"} & config.part.hooks():
            preparer.faults.problems(item, config.check(replace(plan.shape(), d_model=width)))
            preparer.faults.problems(item, _rotation_problems(config, dims))
    rotations = [config for config in positions if "rotation" in config.part.hooks()]
    if node is not None and served and not any(map(_attends, served)):
        for item, config in zip(items(node), positions, strict=False):
            if "embed" not in config.part.hooks():
                preparer.faults.add(item, "no layer that it serves has an attention over its own tokens to take it")
    if node is not None and len(rotations) > 1:
        preparer.faults.add(node, "two positions that rotate queries and keys cannot be combined")
    return tuple(positions), one_or_list(node, written)


def layer_positions(layer: LayerText, sublayers: Sequence[SublayerPlan]) -> tuple[PositionFacts.Config, ...] | None:
    """Return the layer's own positions, merged over the stack's; None if it uses the stack's."""
    node = layer_position_text(layer)
    if node is None:
        return None
    shape = replace(layer.shape, num_heads=agreed_heads(sublayers))
    positions, written = [], []
    for item in items(node):
        config, text = _read(item, layer.preparer, shape)
        written.append(text)
        if config is not None and "embed" in config.part.hooks():
            layer.faults.add(
                item, f"'{config.part.part_name}' is added to the embeddings; it stands in the stack, not in a layer"
            )
        elif config is not None:
            positions.append(config)
            layer.faults.problems(item, _rotation_problems(config, _head_dims(sublayers, shape)))
    layer.written["position"] = one_or_list(node, written) or node
    return tuple(positions)


def layer_position_text(layer: LayerText) -> Node | None:
    """Return the text of a layer's own positions, merged over the stack's; None if not set."""
    node, below = layer.keys.get("position"), given(layer.stack.keys, "position")
    if node is None or node.value is None or below is None or isinstance(below.value, list):
        return node
    return node if isinstance(node.value, list) else merge(below, node, layer.faults.found)


def _attends(sublayers: Sequence[SublayerPlan]) -> bool:
    """True if the layer has self-attention."""
    return any(sub.config.part.part_slot == "attention" and not sub.memory for sub in sublayers)


def _read(node: Node, preparer: Preparer, shape: Shape | None = None) -> tuple[PositionFacts.Config | None, Node]:
    """Parse one position; return it with its text."""
    if node.value is None:
        preparer.faults.add(node, "none stands alone, as in position: none; a list names positions")
        return None, node
    config, text = preparer.read(node, "position", shape)
    return of_kind(config, PositionFacts.Config), text


def agreed_heads(sublayers: Sequence[SublayerPlan]) -> int | None:
    """Return the number of heads of a layer's self-attentions; None if there are none, or they differ."""
    attentions = [sub.config for sub in sublayers if not sub.memory]
    counts = {config.heads() for config in attentions if isinstance(config, AttentionFacts.Config)}
    return counts.pop() if len(counts) == 1 else None


def _head_dims(sublayers: Sequence[SublayerPlan], shape: Shape) -> list[int]:
    """Return the query and key head widths that a position may rotate."""
    attentions = [sub.config for sub in sublayers if not sub.memory]
    widths = {config.width(shape) for config in attentions if isinstance(config, AttentionFacts.Config)}
    return sorted(width for width in widths if width is not None)


def _rotation_problems(config: PositionFacts.Config, dims: Sequence[int]) -> Iterator[Problem]:
    """Yield problems of a position with the widths of rotated heads."""
    for dim in dims:
        yield from config.check_head_dim(dim)


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
