"""From a pattern to the distinct layers of a stack, `per_layer` picked (rule R5), and what they share (R6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfkit.core.blueprint import LayerPlan
from tfkit.recipe.faults import Faults
from tfkit.recipe.layers import LayerResolver
from tfkit.recipe.node import Node
from tfkit.recipe.pattern import Entry, combinations, pick, varies


class DistinctLayers:
    """The different layers of a stack in the order they first appear, each with the text it was resolved from."""

    def __init__(self, layers: LayerResolver) -> None:
        self.layers = layers
        self.faults = layers.faults
        self.plans: list[LayerPlan] = []
        self.nodes: list[Node] = []

    def order(self, entries: Sequence[Entry]) -> list[int]:
        """For each layer the number of its plan; empty where one has a fault."""
        texts = {kinds: self.layers.merged(kinds) for kinds in combinations(entries)}
        if any(varies(node) for node in texts.values()):
            return self._one_by_one(entries, texts)
        # the usual case, and the one that must stay quick for a million layers
        numbers = {kinds: self._number(node) for kinds, node in texts.items()}
        return _complete([numbers[entry.kinds] for entry in entries])

    def _number(self, node: Node) -> int | None:
        """The number of the layer that `node` describes; None where it has a fault."""
        plan = self.layers.plan(node)
        if plan is None:
            return None
        if plan not in self.plans:
            self.plans.append(plan)
            self.nodes.append(node)
        return self.plans.index(plan)

    def _one_by_one(self, entries: Sequence[Entry], texts: Mapping[tuple[str, ...], Node]) -> list[int]:
        """The order where some text says `per_layer`, so that each layer is read by itself."""
        turns = Counter[str]()
        totals = Counter(kind for entry in entries for kind in entry.kinds)
        firsts: dict[int, LayerPlan] = {}  # of each pattern entry
        order: list[int | None] = []
        for index, entry in enumerate(entries):
            places = {kind: (turns[kind], totals[kind]) for kind in entry.kinds}
            before = len(self.faults.found)
            node = pick(texts[entry.kinds], {"": (index, len(entries)), **places}, self.faults)
            number = self._number(node) if len(self.faults.found) == before else None
            order.append(number)
            turns.update(entry.kinds)
            if number is not None:
                plan = self.plans[number]
                _check_shared(firsts.setdefault(entry.number, plan), plan, node, self.faults)
        return _complete(order)


def sharing(plans: Sequence[LayerPlan], entries: Sequence[Entry], order: Sequence[int]) -> tuple[int, ...]:
    """The pattern entry of each layer that shares something (R6), -1 for the others.

    Entries are numbered as they first appear, so that equal sharing is equal however it was written.
    """
    shares = [plan.shares() for plan in plans]
    if not any(shares):
        return (-1,) * len(order)
    names: dict[int, int] = {-1: -1}
    numbers = (entry.number if shares[kind] else -1 for entry, kind in zip(entries, order, strict=True))
    return tuple(names.setdefault(number, len(names) - 1) for number in numbers)


def _check_shared(first: LayerPlan, plan: LayerPlan, node: Node, faults: Faults) -> None:
    """Layers of one pattern entry differ by `per_layer` alone; what they share may not."""
    text = "is shared, so per_layer cannot change what it is made of"
    if plan.shared and replace(plan, mask=first.mask) != first:
        faults.add(node.get("shared") or node, f"the layer {text}; only its mask")
    for one, other in zip(first.sublayers, plan.sublayers, strict=True):
        if getattr(other.config, "shared", False) and one.config != other.config:
            faults.add(node.get(other.name) or node, f"{other.name} {text}")


def _complete(order: Sequence[int | None]) -> list[int]:
    numbers = [number for number in order if number is not None]
    return numbers if len(numbers) == len(order) else []
