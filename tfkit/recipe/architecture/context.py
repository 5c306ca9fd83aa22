"""Masks (rule R4) and positions (rule R7) of a layer, and checks that its parts support them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tfkit.core.blueprint import LayerPlan, StackPlan, SublayerPlan
from tfkit.core.component import Config, Shape
from tfkit.core.slots import AttentionFacts, MaskFacts, PositionFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer, validated
from tfkit.recipe.architecture.stack import LayerText, StackText
from tfkit.recipe.overlays import merge
from tfkit.recipe.rules import FACTS, Part, reason, requirements_of
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, items, node_at, one_or_list


class Masks(NamedTuple):
    """The mask rules of a layer, without duplicates.

    `text` is the source of the explicit rules, and `written` lists each explicit rule with its node.
    """

    rules: tuple[MaskFacts.Config, ...]
    causal: bool  # True if one of the rules is a limit that hides the future
    text: Node | None
    written: list[tuple[Node, MaskFacts.Config]]


def layer_masks(stack: StackText, keys: Mapping[str, Node]) -> Masks:
    """Return the masks of a layer: from the model's type, the stack and the layer. `none` drops the stack's."""
    by_type = validated(replace(stack.node, value="causal"), "mask", stack.faults) if stack.causal else None
    written: list[tuple[Node, MaskFacts.Config]] = []
    texts: dict[MaskFacts.Config, Node] = {}
    causal = stack.causal
    for node in written_masks(stack, keys):
        config, text = Preparer(stack.faults).read(node, "mask")
        if (rule := of_kind(config, MaskFacts.Config)) is not None:
            written.append((node, rule))
            texts.setdefault(rule, text)
            causal = causal or rule.part.hides_future
    for node, rule in written:
        stack.faults.problems(node, rule.check(replace(stack.plan.shape(), causal=causal)))
    first = of_kind(by_type, MaskFacts.Config)
    rules = tuple(texts) if first is None else tuple(dict.fromkeys((first, *texts)))
    explicit = [texts[rule] for rule in explicit_masks(rules, stack.causal)]
    source = one_or_list(keys.get("mask", stack.keys.get("mask")), explicit)
    return Masks(rules, any(rule.part.hides_future and not rule.part.opens for rule in rules), source, written)


def explicit_masks(masks: Sequence[MaskFacts.Config], causal: bool) -> list[MaskFacts.Config]:
    """Return the rules that a recipe must name; `causal` is true if the model's type already implies that rule."""
    return [rule for rule in masks if not (causal and rule.part.part_name == "causal")]


def written_masks(stack: StackText, keys: Mapping[str, Node]) -> list[Node]:
    """Return the nodes of a layer's explicit masks: those of the stack and its own."""
    own = keys.get("mask")
    return [] if own is not None and own.value is None else items(stack.keys.get("mask")) + items(own)


def read_positions(
    node: Node | None, preparer: Preparer, shape: Shape | None = None
) -> tuple[list[tuple[Node, PositionFacts.Config]], Node | None]:
    """Parse a position or a list of positions; return the valid ones with their nodes, and the parsed source."""
    valid, written = [], []
    for item in items(node):
        config, text = (None, item) if item.value is None else preparer.read(item, "position", shape)
        written.append(text)
        if item.value is None:
            preparer.faults.add(item, "none cannot be in a list of positions; use position: none")
        if (position := of_kind(config, PositionFacts.Config)) is not None:
            valid.append((item, position))
    return valid, one_or_list(node, written)


def stack_positions(
    node: Node | None, plan: StackPlan, width: int, preparer: Preparer
) -> tuple[tuple[PositionFacts.Config, ...], Node | None]:
    """Return the stack's positions, the default for its layers, and their parsed source.

    `plan` has no layers if they have faults; `width` is the width at which positions are added to embeddings.
    """
    faults, shape = preparer.faults, plan.shape()
    served = [layer.sublayers for layer in plan.layers if layer.position is None]
    dims = sorted({dim for sublayers in served for dim in head_dims(sublayers, shape)})
    valid, written = read_positions(node, preparer)
    rotations = 0
    for item, config in valid:
        hooks = config.part.hooks()
        # biases and rotations depend on the heads, so they are checked only if the layers have no faults
        if plan.layers or not {"bias", "rotation"} & hooks:
            faults.problems(item, config.check(replace(shape, d_model=width)))
            for dim in dims:
                faults.problems(item, config.check_head_dim(dim))
        if served and "embed" not in hooks and not any(map(attentions_of, served)):
            faults.add(item, "no layer that uses this position has self-attention")
        rotations += "rotation" in hooks
    if node is not None and rotations > 1:
        faults.add(node, "two positions that rotate queries and keys cannot be combined")
    return tuple([config for _, config in valid]), written


def layer_positions(layer: LayerText, sublayers: Sequence[SublayerPlan]) -> tuple[PositionFacts.Config, ...] | None:
    """Return the layer's own positions, merged over the stack's, or None if it has none of its own."""
    node, below = layer.keys.get("position"), node_at(layer.stack.keys, "position")
    if node is None:
        return None
    if below is not None and node.value is not None and not isinstance(below.value, list):
        node = node if isinstance(node.value, list) else merge(below, node, layer.faults.errors)
    shape = replace(layer.shape, num_heads=agreed_heads(sublayers))
    valid, written = read_positions(node, layer.preparer, shape)
    own = []
    for item, config in valid:
        if "embed" in config.part.hooks():
            text = f"'{config.part.part_name}' is added to the embeddings; set it in the stack, not in a layer"
            layer.faults.add(item, text)
            continue
        for dim in head_dims(sublayers, shape):
            layer.faults.problems(item, config.check_head_dim(dim))
        own.append(config)
    layer.written["position"] = written or node
    return tuple(own)


def attentions_of(sublayers: Sequence[SublayerPlan]) -> list[AttentionFacts.Config]:
    """Return the self-attentions of a layer."""
    return [sub.config for sub in sublayers if not sub.memory and isinstance(sub.config, AttentionFacts.Config)]


def agreed_heads(sublayers: Sequence[SublayerPlan]) -> int | None:
    """Return the number of heads in a layer's self-attentions; None if they differ or there is no self-attention."""
    counts = {config.heads() for config in attentions_of(sublayers)}
    return counts.pop() if len(counts) == 1 else None


def head_dims(sublayers: Sequence[SublayerPlan], shape: Shape) -> list[int]:
    """Return the distinct head widths of queries and keys, to which a rotary position applies."""
    widths = {config.width(shape) for config in attentions_of(sublayers)}
    return sorted(filter(None, widths))


def check_layer(layer: LayerText, plan: LayerPlan, masks: Masks) -> None:
    """Refuse contradictory masks, and parts that do not support the layer's direction, masks or positions."""
    own_positions, faults = items(layer.keys.get("position")), layer.faults
    if {"causal", "reverse_causal"} <= {rule.part.part_name for rule in plan.mask}:
        reverse = [node for node, rule in masks.written if rule.part.part_name == "reverse_causal"]
        text = "with both causal and reverse_causal in a layer, each token sees only itself"
        faults.add(reverse[-1] if reverse else layer.node, text)
    if plan.position is None:  # faults in the stack's position are reported with the stack
        positions, _ = read_positions(layer.stack.keys.get("position"), Preparer(Faults()))
    else:
        positions = list(zip(own_positions, plan.position, strict=False))  # `own_positions` also has the invalid ones
    own: list[tuple[Part, Node]] = []  # parts that process the layer's own tokens, not the memory
    memory, attends = FACTS["a memory"], False
    for sub in plan.sublayers:
        if not sub.memory:
            own.append((sub.config.part, _text(layer, sub.name)))
            attends = attends or sub.config.part.part_slot == "attention"
        if sub.norm is not None:
            own.append((sub.norm.part, _text(layer, f"{sub.name}_norm", "norm")))
    own.append((plan.residual.part, _text(layer, "residual")))
    for node, config in positions:
        own.append((config.part, node))
    direction = FACTS["a causal layer" if plan.causal else "a bidirectional layer"]
    for part, node in own:
        if direction.refuses(part):
            faults.add(node, reason(direction, part))
    if any(sub.memory for sub in plan.sublayers) and memory.refuses(plan.residual.part):
        faults.add(_text(layer, "residual"), reason(memory, plan.residual.part))
    askers: list[tuple[Node, Config]] = [*masks.written, *positions]
    for place, asker in askers:
        for rule in requirements_of(asker):
            # requirements that follow from the direction are already checked above
            for part, node in own if rule.capability != direction.capability else ():
                if rule.refuses(part):
                    faults.add(node, f"{reason(rule, part, asker.part)} (see {place.place})")
    for item in () if attends else own_positions:
        faults.add(item, "the layer has no self-attention to use this position; set position: none")


def _text(layer: LayerText, *keys: str) -> Node:
    """Return the node of the first of `keys` set in the layer; if none is, that of the first key without its number."""
    for key in (*keys, keys[0].rpartition("_")[0]):
        if key in layer.keys:
            return layer.keys[key]
    return layer.node
