"""Resolution of a pattern to distinct layers, expanding `per_layer` (rule R5), and their sharing (R6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfkit.core.blueprint import LayerPlan
from tfkit.recipe.architecture.layers import LayerResolver
from tfkit.recipe.architecture.pattern import PatternEntry, combinations
from tfkit.recipe.architecture.per_layer import Turns, varies
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node

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
