"""Positions (rule R7): the stack's, or a layer's own merged over it; and the width of rotated heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tfkit.core.blueprint import StackPlan, SublayerPlan
from tfkit.core.component import Problem
from tfkit.core.shape import Shape
from tfkit.core.slots import AttentionFacts, PositionFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.architecture.stack_text import LayerText
from tfkit.recipe.overlays.merge import merge
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import given, items, one_or_list


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
