"""Layers of one stack: `layer` with kinds merged over it (R2), `per_layer` expanded (R5), equal ones shared (R6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfkit.core.blueprint import LayerPlan
from tfkit.core.slots import ResidualFacts, of_kind
from tfkit.recipe.architecture.context import (
    agreed_heads,
    check_layer,
    check_opposed,
    hide_future,
    layer_masks,
    layer_positions,
)
from tfkit.recipe.architecture.pattern import NO_PARTS, PatternEntry, Turns, combinations, is_per_layer, varies
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.architecture.stack import LayerText, StackText
from tfkit.recipe.architecture.sublayers import (
    SUBLAYER_KEY,
    SublayerResolver,
    check_norms,
    with_cross_attention,
    without_cross_attention,
)
from tfkit.recipe.keys import LAYER, default_part
from tfkit.recipe.overlays import merge
from tfkit.recipe.text.faults import Faults, plain
from tfkit.recipe.text.node import Node, given, mapping

MAX_KINDS = 256  # each is validated separately
PLAIN = [key for key in LAYER.values() if key.is_plain]  # values that the Blueprint stores as written


class LayerResolver:
    """Resolver for the layers of one stack."""

    def __init__(self, stack: StackText) -> None:
        self.stack = stack
        self.faults = stack.faults
        self.base = self._base()
        self.kinds = self._kinds()
        self._written: dict[int, tuple[Node, Node]] = {}  # by the id of the layer's node, which stays alive

    def _base(self) -> Node | None:
        """Return the node of `layer`; None if it cannot be a layer."""
        node = self.stack.keys.get("layer")
        if node is None:
            self.faults.add(self.stack.node, "needs a layer: what each layer is made of")
            return None
        if not isinstance(node.value, dict):
            self.faults.add(node, "expected a mapping that describes a layer")
            return None
        return self._without_cross(node) if self._has_no_memory else with_cross_attention(node, self.faults)

    def _kinds(self) -> Mapping[str, Node]:
        node = given(self.stack.keys, "layers")
        if node is not None and not isinstance(node.value, dict):
            self.faults.add(node, "expected a mapping of names to what differs from `layer`")
        kinds = {name: kind for name, kind in mapping(node).items() if kind.value is not None}
        return {name: self._without_cross(kind) for name, kind in kinds.items()} if self._has_no_memory else kinds

    @property
    def _has_no_memory(self) -> bool:
        return self.stack.plan.memory_width is None

    def _without_cross(self, node: Node) -> Node:
        return without_cross_attention(node, self.stack, self.faults)

    def check_texts(self) -> bool:
        """Report invalid keys in `layer` or a kind; return False if the layers cannot be resolved."""
        if len(self.kinds) > MAX_KINDS:
            node = self.stack.keys["layers"]
            self.faults.add(node, f"names {len(self.kinds):,} kinds; at most {MAX_KINDS:,} can be told apart")
            return False
        for kind in self.kinds.values():
            if not isinstance(kind.value, dict):
                self.faults.add(kind, "expected a mapping of what differs from `layer`; {} for no change")
        resolvable = True
        for key, child in self._texts():
            if key not in LAYER and SUBLAYER_KEY.fullmatch(key) is None:
                self.faults.unknown_key(child, list(LAYER))
            elif key != "dropout" and is_per_layer(child):
                self.faults.add(child, NO_PARTS)
                resolvable = False
        return resolvable

    def _texts(self) -> Iterator[tuple[str, Node]]:
        """Yield the keys of `layer` and of every kind, used or not."""
        for node in (self.base, *self.kinds.values()):
            yield from mapping(node).items()

    def check_unused(self, used: Collection[tuple[str, ...]]) -> None:
        """Report kinds that the pattern never uses, as far as they can be checked."""
        for kinds in [(), *((kind,) for kind in self.kinds)] if self.base is not None else []:
            # a kind may be complete only in combination with others, so only its own keys are checked
            if not any(set(kinds) <= set(combination) for combination in used) and not varies(self.merged(kinds)):
                self.plan(self.merged(kinds))

    def merged(self, kinds: Sequence[str]) -> Node:
        """Return `layer` with the kinds merged over it in order (R2)."""
        node = self.base if self.base is not None else replace(self.stack.node, value={})
        for kind in kinds:
            if isinstance(self.kinds[kind].value, dict):
                node = merge(node, self.kinds[kind], self.faults.found)
        return node

    def plan(self, node: Node) -> LayerPlan | None:
        """Return the plan of a complete layer node, or None with its faults added."""
        before = len(self.faults.found)
        keys = mapping(node)
        mask, mask_text = layer_masks(self.stack, keys)
        causal = hide_future(mask)
        shape = replace(self.stack.plan.shape(), causal=causal)
        norm_node = given(keys, "norm")
        layer = LayerText(self.stack, node, shape, Preparer(self.faults, norm_node))
        norm = None if norm_node is None else layer.config(norm_node, "norm")
        residual = _residual(layer)
        sublayers = SublayerResolver(layer, norm).resolve()
        position = layer_positions(layer, sublayers)
        values: dict[str, Any] = {key.field: plain(key.kind, keys.get(key.name), self.faults) for key in PLAIN}
        if residual is None or len(self.faults.found) > before:
            return None
        check_norms(layer, residual, sublayers, norm)
        check_opposed(layer, mask)
        num_heads = agreed_heads(sublayers)
        plan = LayerPlan(
            residual=residual, sublayers=tuple(sublayers), norm=norm, mask=mask, causal=causal, position=position,
            num_heads=num_heads, **values,
        )  # fmt: skip
        check_layer(layer, plan)
        if mask_text is not None:
            layer.written["mask"] = mask_text
        as_written = {name: child for name, child in keys.items() if name in LAYER and LAYER[name].field == name}
        self._written[id(node)] = node, replace(node, value={**as_written, **layer.written})
        return plan

    def written(self, node: Node) -> Node:
        """Return the text of a resolved layer, with each part as it was parsed."""
        return self._written[id(node)][1]


def _residual(layer: LayerText) -> ResidualFacts.Config | None:
    default = default_part(LAYER["residual"])
    node = layer.keys.get("residual", replace(layer.node, value=default))
    written = replace(node, value="plain") if node.value is None else node
    return of_kind(layer.config(written, "residual", default=default), ResidualFacts.Config)


MAX_DIFFERENT = 256  # distinct layers of one stack: resolved.yaml lists each


class DistinctLayers:
    """The distinct layers of a stack in order of appearance, each with its source text."""

    def __init__(self, layers: LayerResolver) -> None:
        self.layers = layers
        self.faults = layers.faults
        self.plans: list[LayerPlan] = []
        self.nodes: list[Node] = []
        self.texts: list[Node] = []  # of every layer, including equal ones
        self._alike: dict[str, list[int]] = {}  # indices of plans by repr

    def order(self, entries: Sequence[PatternEntry]) -> list[int]:
        """Return the plan index of each layer; empty if one has a fault."""
        different = combinations(entries)
        if len(different) > MAX_DIFFERENT:
            self._refuse_more(self.layers.stack.keys["pattern"])
            return []
        texts = {kinds: self.layers.merged(kinds) for kinds in different}
        if any(varies(node) for node in texts.values()):
            return self._one_by_one(entries, texts)
        numbers = {kinds: self._number(node) for kinds, node in texts.items()}
        self.texts = [texts[entry.kinds] for entry in entries]
        return _complete([numbers[entry.kinds] for entry in entries])

    def _number(self, node: Node) -> int | None:
        """Return the plan index for `node`; None if it has a fault."""
        plan = self.layers.plan(node)
        if plan is None:
            return None
        for number in self._alike.setdefault(repr(plan), []):  # avoids comparing a thousand plans in pairs
            if self.plans[number] == plan:
                return number
        self.plans.append(plan)
        self.nodes.append(node)
        self._alike[repr(plan)].append(len(self.plans) - 1)
        return len(self.plans) - 1

    def _one_by_one(self, entries: Sequence[PatternEntry], texts: Mapping[tuple[str, ...], Node]) -> list[int]:
        """Return the order if `per_layer` is used; layers with equal choices from equal texts are parsed once."""
        turns = Turns(texts, [entry.kinds for entry in entries])
        if not turns.check(self.faults):
            return []
        numbers: dict[object, int | None] = {}
        nodes: dict[object, Node] = {}
        firsts: dict[int, LayerPlan] = {}  # by pattern entry
        order: list[int | None] = []
        settled: dict[tuple[str, ...], int | None] = {}
        last: dict[tuple[str, ...], Node] = {}  # the text of the last layer of those kinds
        for entry in entries:
            if entry.kinds in settled:
                order.append(settled[entry.kinds])
                self.texts.append(last[entry.kinds])
                continue
            picked = turns.values(entry.kinds)
            alike = entry.kinds, picked
            node = nodes[alike] if alike in numbers else turns.text(entry.kinds)
            number = numbers[alike] if alike in numbers else self._number(node)
            nodes[alike] = node
            self.texts.append(node)
            last[entry.kinds] = node
            if number is not None or not picked:  # a wrong value in a list is reported at each index
                numbers[alike] = number
            turns.step(entry.kinds)
            order.append(number)
            if turns.fixed(entry.kinds):
                settled[entry.kinds] = number
            if number is not None and self.plans[number].shares():
                first = firsts.setdefault(entry.number, self.plans[number])
                _check_shared(first, self.plans[number], self.nodes[number], self.faults)
            if len(self.plans) > MAX_DIFFERENT or (number is None and order.count(None) > MAX_DIFFERENT):
                self._refuse_more(turns.first)
                return []
        return _complete(order)

    def _refuse_more(self, node: Node) -> None:
        self.faults.add(node, f"more than {MAX_DIFFERENT:,} layers of this stack differ; let some be equal")


def sharing(plans: Sequence[LayerPlan], entries: Sequence[PatternEntry], order: Sequence[int]) -> tuple[int, ...]:
    """Return the pattern entry of each layer that shares weights (R6), else -1.

    Entries are numbered by first appearance, so that equal sharing compares equal.
    """
    shares = [plan.shares() for plan in plans]
    if not any(shares):
        return (-1,) * len(order)
    numbers = [entry.number if shares[kind] else -1 for entry, kind in zip(entries, order, strict=True)]
    different = [number for number in dict.fromkeys(numbers) if number >= 0]
    names = {number: index for index, number in enumerate(different)} | {-1: -1}
    return tuple(map(names.__getitem__, numbers))


def _check_shared(first: LayerPlan, plan: LayerPlan, node: Node, faults: Faults) -> None:
    """Report differences by `per_layer` within shared parts of a pattern entry."""
    text = "is shared, so per_layer cannot change what it is made of"
    if plan.shared and replace(plan, mask=first.mask) != first:
        faults.add(node.get("shared") or node, f"the layer {text}; only its mask")
    for one, other in zip(first.sublayers, plan.sublayers, strict=False):  # one with a fault is omitted
        if other.config.shared and one.config != other.config:
            faults.add(node.get(other.name) or node, f"{other.name} {text}")


def _complete(order: Sequence[int | None]) -> list[int]:
    numbers = [number for number in order if number is not None]
    return numbers if len(numbers) == len(order) else []
