"""Layers of one stack: kinds merged over `layer` (R2), `per_layer` expanded (R5), equal layers described once (R6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfkit.core.blueprint import LayerPlan
from tfkit.core.layout import ResidualFacts
from tfkit.core.slots import of_kind
from tfkit.recipe.architecture.context import agreed_heads, check_layer, layer_masks, layer_positions
from tfkit.recipe.architecture.prepare import NO_PARTS, PatternEntry, Preparer, Turns, is_per_layer, varies
from tfkit.recipe.architecture.stack import (
    SUBLAYER_KEY,
    LayerText,
    StackText,
    check_norms,
    read_sublayers,
    with_cross_attention,
    without_cross_attention,
)
from tfkit.recipe.keys import LAYER, default_part
from tfkit.recipe.overlays import merge
from tfkit.recipe.text.faults import plain
from tfkit.recipe.text.node import Node, mapping, node_at

MAX_KINDS = 256  # each kind is validated separately
MAX_DIFFERENT = 256  # maximum number of distinct layers per stack, since resolved.yaml lists each
RESIDUAL = default_part(LAYER["residual"])
PLAIN = [key for key in LAYER.values() if key.is_plain]  # keys whose values are stored in the Blueprint as they are


class StackLayers:
    """Resolver for the layers of one stack: its distinct `plans` in order of appearance, each with its source."""

    def __init__(self, stack: StackText) -> None:
        self.stack = stack
        self.faults = stack.faults
        self.plans: list[LayerPlan] = []
        self.nodes: list[Node] = []  # source of each plan
        self.texts: list[Node] = []  # source of every layer, including equal ones
        self._by_repr: dict[str, list[int]] = {}  # indices of plans
        # keyed by id() of the layer's node; storing the node keeps it alive, and its id unique
        self._written: dict[int, tuple[Node, dict[str, Node]]] = {}
        node, named = stack.keys.get("layer"), node_at(stack.keys, "layers")
        if node is None:
            self.faults.add(stack.node, "needs `layer`, which describes its layers")
        elif not isinstance(node.value, dict):
            self.faults.add(node, "expected a mapping that describes a layer")
        if named is not None and not isinstance(named.value, dict):
            self.faults.add(named, "expected a mapping from names to changes to `layer`")
        self.base = node if node is not None and isinstance(node.value, dict) else None  # None if missing or invalid
        self.kinds = {name: kind for name, kind in mapping(named).items() if kind.value is not None}
        if stack.plan.memory_width is None:
            self.base = self.base and without_cross_attention(self.base, stack)
            for name, kind in self.kinds.items():
                self.kinds[name] = without_cross_attention(kind, stack)
        elif self.base is not None:
            self.base = with_cross_attention(self.base, self.faults)

    def check_texts(self) -> bool:
        """Report invalid keys in `layer` and the kinds; return False if the layers cannot be resolved."""
        if len(self.kinds) > MAX_KINDS:
            node = self.stack.keys["layers"]
            self.faults.add(node, f"names {len(self.kinds):,} kinds; the limit is {MAX_KINDS:,}")
            return False
        for kind in self.kinds.values():
            if not isinstance(kind.value, dict):
                self.faults.add(kind, "expected a mapping with changes to `layer`, or {} for no change")
        resolvable = True
        for text in (self.base, *self.kinds.values()):  # including unused kinds
            for key, child in mapping(text).items():
                if key not in LAYER and SUBLAYER_KEY.fullmatch(key) is None:
                    self.faults.unknown_key(child, list(LAYER))
                elif key != "dropout" and is_per_layer(child):
                    self.faults.add(child, NO_PARTS)
                    resolvable = False
        return resolvable

    def _check_unused(self, entries: Sequence[PatternEntry]) -> None:
        """Report faults in `layer`, if it has no layer of its own, and in kinds that the pattern never uses.

        An unused kind may need to be combined with another one, so only its own keys are checked.
        """
        if self.base is None or (entries and not self.kinds):
            return
        used = {kind for entry in entries for kind in entry.kinds}
        unused: list[tuple[str, ...]] = [(kind,) for kind in self.kinds if kind not in used]
        for kinds in unused if entries else [(), *unused]:
            node = self.merged(kinds)
            if not varies(node):
                self.plan(node)

    def merged(self, kinds: Sequence[str]) -> Node:
        """Return `layer` with the kinds merged over it in order (R2)."""
        node = self.base if self.base is not None else replace(self.stack.node, value={})
        for kind in kinds:
            if isinstance(self.kinds[kind].value, dict):
                node = merge(node, self.kinds[kind], self.faults.errors)
        return node

    def plan(self, node: Node) -> LayerPlan | None:
        """Return the plan of a complete layer node, or None after a fault."""
        before = len(self.faults.errors)
        keys = mapping(node)
        masks = layer_masks(self.stack, keys)
        shape = replace(self.stack.plan.shape(), causal=masks.causal)
        norm_node = node_at(keys, "norm")
        layer = LayerText(self.stack, node, keys, shape, Preparer(self.faults, norm_node), self.faults)
        norm = None if norm_node is None else layer.config(norm_node, "norm")
        residual_node = keys.get("residual", replace(node, value=RESIDUAL))
        residual_node = replace(residual_node, value="plain") if residual_node.value is None else residual_node
        residual = of_kind(layer.config(residual_node, "residual", default=RESIDUAL), ResidualFacts.Config)
        sublayers = read_sublayers(layer, norm)
        position = layer_positions(layer, sublayers)
        values: dict[str, Any] = {key.field: plain(key.kind, keys.get(key.name), self.faults) for key in PLAIN}
        if residual is None or len(self.faults.errors) > before:
            return None
        check_norms(layer, residual, sublayers, norm)
        plan = LayerPlan(
            residual=residual, sublayers=tuple(sublayers), norm=norm, mask=masks.rules, causal=masks.causal,
            position=position, num_heads=agreed_heads(sublayers), **values,
        )  # fmt: skip
        check_layer(layer, plan, masks)
        if masks.text is not None:
            layer.written["mask"] = masks.text
        self._written[id(node)] = node, layer.written
        return plan

    def written(self, index: int) -> Node:
        """Return the source of the layer `index`, with each part as it was parsed."""
        node, written = self._written[id(self.texts[index])]
        plain = {name: child for name, child in mapping(node).items() if name in LAYER and LAYER[name].field == name}
        return replace(node, value=plain | written)

    def order(self, entries: Sequence[PatternEntry]) -> list[int]:
        """Return the plan index of each layer; empty if one has a fault."""
        self._check_unused(entries)
        different = dict.fromkeys(entry.kinds for entry in entries)
        if len(different) > MAX_DIFFERENT:
            self._refuse_more(self.stack.keys["pattern"])
            return []
        texts = {kinds: self.merged(kinds) for kinds in different}
        turns = Turns(texts, [entry.kinds for entry in entries])
        if turns.lists and not turns.check(self.faults):
            return []
        numbers: dict[object, int] = {}  # plan index by kinds and `per_layer` values, which determine the source
        nodes: dict[object, Node] = {}
        order: list[int] = []  # -1 for a layer with a fault
        wrong = 0
        for entry in entries:
            picked = turns.values(entry.kinds) if turns.lists else ()
            key = entry.kinds, picked
            if key not in numbers:
                nodes[key] = turns.text(entry.kinds) if turns.lists else texts[entry.kinds]
                number = self._number(nodes[key])
                wrong += number < 0
                if number >= 0 or not picked:  # invalid values in a `per_layer` list are reported one by one
                    numbers[key] = number
                if len(self.plans) > MAX_DIFFERENT or wrong > MAX_DIFFERENT:
                    self._refuse_more(turns.lists[0])
                    return []
            if turns.lists:
                turns.step(entry.kinds)
            self.texts.append(nodes[key])
            order.append(numbers.get(key, -1))
        if turns.lists:
            self._check_shared(entries, order)
        return [] if -1 in order else order

    def _check_shared(self, entries: Sequence[PatternEntry], order: Sequence[int]) -> None:
        """Report `per_layer` values that differ within shared parts."""
        firsts: dict[int, LayerPlan] = {}
        text = "shares its weights over layers, so per_layer cannot change its options"
        for entry, number in dict.fromkeys(zip([entry.number for entry in entries], order, strict=True)):
            if number < 0:
                continue
            plan, node = self.plans[number], self.nodes[number]
            first = firsts.setdefault(entry, plan)
            if plan.shared and replace(plan, mask=first.mask) != first:
                self.faults.add(node.get("shared") or node, f"the layer {text}, except mask")
            for one, other in zip(first.sublayers, plan.sublayers, strict=False):  # a sublayer with a fault is missing
                if other.config.shared and one.config != other.config:
                    self.faults.add(node.get(other.name) or node, f"{other.name} {text}")

    def _number(self, node: Node) -> int:
        """Return the plan index for `node`, adding its plan if it is new; -1 if it has a fault."""
        plan = self.plan(node)
        if plan is None:
            return -1
        same = self._by_repr.setdefault(repr(plan), [])  # compares only plans with equal repr
        for number in same:
            if self.plans[number] == plan:
                return number
        self.plans.append(plan)
        self.nodes.append(node)
        same.append(len(self.plans) - 1)
        return len(self.plans) - 1

    def _refuse_more(self, node: Node) -> None:
        self.faults.add(node, f"this stack has more than {MAX_DIFFERENT:,} different layers; make some equal")


def sharing(plans: Sequence[LayerPlan], entries: Sequence[PatternEntry], order: Sequence[int]) -> tuple[int, ...]:
    """Return, for each layer, the index of the entry with which it shares weights (R6), or -1.

    Entries are numbered in order of appearance, so that equal sharing compares equal.
    """
    shares = [plan.shares() for plan in plans]
    if not any(shares):
        return (-1,) * len(order)
    numbers = [entry.number if shares[kind] else -1 for entry, kind in zip(entries, order, strict=True)]
    different = [number for number in dict.fromkeys(numbers) if number >= 0]
    names = {number: index for index, number in enumerate(different)} | {-1: -1}
    return tuple(map(names.__getitem__, numbers))
