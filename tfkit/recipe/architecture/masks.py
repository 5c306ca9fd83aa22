"""Masks of a layer (rule R4): the sum of the type's, the stack's and the layer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfkit.core.component import Config
from tfkit.core.slots import MaskFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer, validated
from tfkit.recipe.architecture.stack_text import LayerText, StackText
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import items, one_or_list


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
