"""The table of a resolved recipe: one row per key, with the value, its origin, its description and its layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.bounds import Tree
from tfkit.core.component import Side
from tfkit.core.errors import UsageError
from tfkit.core.synonyms import nearest
from tfkit.recipe.architecture.resolve import ModelResolver
from tfkit.recipe.keys import LEAVES, MODEL, STACK, TOP, sentence
from tfkit.recipe.text.node import Node, inline, items, mapping, node_at
from tfkit.recipe.text.source import LANGUAGE, parse
from tfkit.recipe.views.resolved import (
    causal_by_type,
    kind_names,
    layer_values,
    model_values,
    one_or_many,
    resolved_text,
    stack_values,
)
from tfkit.recipe.views.row import Notes, RecipeRow, places

COMPOSING = ("extends", "variants")
AS_WRITTEN = ("mask", "memory", "layers", "pattern")  # stack keys shown as written; layers have the resolved values
OF_LAYERS = ("mask", "layer", "layers", "pattern")  # stack keys that have a different form in resolved.yaml


@dataclass(frozen=True)
class RecipeTable:
    """All rows of a resolved recipe.

    `root` is the merged tree, and `text` the text of `file`. `sections` are the values outside `model:`; `resolver`
    resolved `blueprint`. `notes` are the comments of the run's resolved.yaml, if the recipe is that of a run.
    """

    root: Node
    text: str | None
    file: str
    sections: Mapping[str, object]
    blueprint: Blueprint
    resolver: ModelResolver
    notes: Notes | None = None

    @cached_property
    def plans(self) -> dict[Side, StackPlan]:
        return {plan.side: plan for plan in self.blueprint.stacks()}

    @cached_property
    def _values(self) -> dict[str, Tree]:
        """Values by key, for the model and for each stack."""
        stacks: Tree = {side: stack_values(plan, self.blueprint) for side, plan in self.plans.items()}
        return {"model": model_values(self.blueprint), **stacks}

    @cached_property
    def _nodes(self) -> dict[str, dict[str, Node]]:
        """Sources by key of resolved.yaml, for the model and for each stack."""
        written, resolver = mapping(self.resolver.node), self.resolver
        stacks = {side: self._stack_nodes(plan) for side, plan in self.plans.items()}
        model = {key: node for key, node in written.items() if key in MODEL and key not in ("encoder", "decoder")}
        for side, nodes in stacks.items():
            model |= {side: replace(resolver.node, value=nodes)} if len(stacks) > 1 else nodes
        heads = {} if resolver.heads is None else resolver.heads.written
        if "head" in model:
            model["head"] = heads.get("model.head", model["head"])
        named = {name: heads.get(node.path, node) for name, node in mapping(written.get("heads")).items()}
        if named:
            model["heads"] = replace(written["heads"], value=named)
        return {"model": model} | {str(side): nodes for side, nodes in stacks.items()}

    def _stack_nodes(self, plan: StackPlan) -> dict[str, Node]:
        text = self.resolver.texts[plan.side]
        keys, names = text.keys, kind_names(plan)
        nodes = {name: node for name, node in keys.items() if name in STACK and name not in OF_LAYERS} | text.written
        if "pattern" in keys:
            nodes.setdefault("num_layers", keys["pattern"])
        if node_at(keys, "max_length") is None:  # a position that holds as many tokens sets the length
            lengths = [node_at(mapping(item), "max_length") for item in items(keys.get("position"))]
            held = [node for node in lengths if node is not None and node.value == plan.max_length]
            nodes |= {"max_length": held[0]} if held else {}
        layers = [self._layer_node(plan.side, plan.order.index(kind), layer) for kind, layer in enumerate(plan.layers)]
        if not names:
            return nodes | {"layer": layers[0]}
        nodes["layer"] = replace(text.node, value={"norm": node} if (node := layers[0].get("norm")) else {})
        nodes["layers"] = replace(text.node, value={name: layers[kinds[0]] for name, kinds in names.items()})
        return nodes | ({"pattern": keys["pattern"]} if "pattern" in keys else {})

    def _layer_node(self, side: Side, index: int, plan: LayerPlan) -> Node:
        """Return the source of a layer, with the stack's position if it has none of its own."""
        layers = self.resolver.layers[side]
        layer, of_stack = layers.written(index), layers.stack.written.get("position")
        if plan.position is not None or of_stack is None:
            return layer
        return replace(layer, value={**mapping(layer), "position": of_stack})

    def resolved(self, name: str) -> str:
        """Return the text of resolved.yaml for the recipe `name`."""
        model = replace(self.resolver.node, value=self._nodes["model"])
        root = replace(self.root, value={**mapping(self.root), "model": model})
        values = {"tfkit": LANGUAGE, "model": self._values["model"], **self.sections}
        for key in LEAVES:
            values.pop(key, None)
        return resolved_text(name, RecipeRow("", values, root))

    def find(self, key: str) -> list[RecipeRow]:
        """Return the rows of the dotted `key`, one for each different value in the stacks and layers.

        For a model or stack, return the rows of all its keys. Raise UsageError for an invalid key, with a similar valid
        one as suggestion.
        """
        steps = re.findall(r"\[\d+\]|[^.\[\]]+", key.strip())
        if not steps or _dotted(steps) != key.strip():
            raise UsageError(f"expected a dotted key, such as model.layer.dropout, got '{key}'")
        if steps[0] not in TOP and steps[0] in (*MODEL, *STACK):
            steps = ["model", *steps]  # keys that start like parameter names: decoder.layers.3
        if steps[0] == "model" and len(self.plans) == 1 and steps[1:2] == list(self.plans):
            del steps[1]
        try:
            return self._found(steps)
        except UsageError:
            row = RecipeRow("", self.root.plain(), self.root, notes=self.notes)
            for step in steps:
                row = row.child(step) or RecipeRow("", None)
            if row.node is None:
                raise
            return [replace(row, is_resolved=False)]

    def _found(self, steps: Sequence[str]) -> list[RecipeRow]:
        path = _dotted(steps)
        if steps[0] != "model":
            if steps[0] not in TOP:
                raise self._unknown(path, steps[0])
            return self._below([self._section(steps[0])], steps[1:], path)
        sides, rest = list(self.plans), list(steps[1:])
        if rest and rest[0] in ("encoder", "decoder"):
            if rest[0] not in sides:
                raise UsageError(f"{path}: this model has no {rest[0]}, only the {sides[0]}")
            sides, rest = [side for side in sides if side == rest[0]], rest[1:]
        return self._model(sides, rest, path) if rest else self._whole(sides, path)

    def _whole(self, sides: Sequence[Side], path: str) -> list[RecipeRow]:
        """Return the rows of a model or stack, omitting keys that are none by default."""
        own = [key for key in MODEL if key not in ("type", "encoder", "decoder")]
        keys = [*STACK] if len(sides) < len(self.plans) else ["type", *STACK, *own]
        groups = [self._model(sides, [key], f"{path}.{key}") for key in keys]
        return [row for rows in groups if any(row.value is not None or row.node for row in rows) for row in rows]

    def _model(self, sides: Sequence[Side], steps: Sequence[str], path: str) -> list[RecipeRow]:
        """Return the rows of the keys `steps` in the model or in the stacks `sides`."""
        key, rest = steps[0], list(steps[1:])
        top = path.removesuffix(_dotted(["", *rest])) if rest else path
        if key in MODEL and len(sides) == len(self.plans):
            return self._below([self._row(top, "model")], rest, path)
        if key == "layer":
            return self._below([row for side in sides for row in self._layers(side, top, key, rest)], rest, path)
        if key == "layers" and rest:
            name, rest = rest[0], rest[1:]
            if rows := [row for side in sides for row in self._layers(side, f"{top}.{name}", name, rest)]:
                return self._below(rows, rest, path)
            if name.isdecimal():
                depths = " and ".join(f"the {side} has {self.plans[side].num_layers:,}" for side in sides)
                raise UsageError(f"{path}: no such layer; layers are counted from 0, and {depths}")
            rest = [name, *rest]
        if key not in STACK:
            raise self._unknown(path, key)
        return self._below([self._row(top, side, side) for side in sides], rest, path)

    def _row(self, path: str, owner: str, side: Side | None = None) -> RecipeRow:
        """Return the row of a key of the model or of a stack."""
        key = path.rpartition(".")[2]
        if side is None or key not in AS_WRITTEN:
            value, node = self._values[owner].get(key), self._nodes[owner].get(key)
        else:
            node = self.resolver.texts[side].keys.get(key)
            value = None if node is None else node.plain()
        return RecipeRow(path, value, node, sentence(path), side, notes=self.notes)

    def _section(self, key: str) -> RecipeRow:
        """Return the row of a section other than `model`, or of `extends` or `variants`."""
        node = self.root.get(key)
        value = self.sections.get(key, node.plain() if node is not None and key == "tfkit" else None)
        if key in COMPOSING:
            node = None if self.text is None else parse(self.text, self.file)[0].get(key)
            value = None if node is None else node.plain()
        return RecipeRow(key, value, node, sentence(key), notes=self.notes)

    def _layers(self, side: Side, path: str, name: str, steps: Sequence[str]) -> Iterator[RecipeRow]:
        """Yield a row for each group of layers with the same source, among those that `name` selects."""
        plan, entries = self.plans[side], self.resolver.entries[side]
        causal, selected = causal_by_type(plan, self.blueprint), self._selection(side, name, bool(steps))
        texts: dict[int, int] = {}
        order = [texts.setdefault(id(node), len(texts)) for node in self.resolver.layers[side].texts]
        by_text = places([text if selected(index) else -1 for index, text in enumerate(order)])
        for runs in (runs for text, runs in by_text.items() if text >= 0):
            first = runs[0][0]
            layer = plan.layers[plan.order[first]]
            values = layer_values(layer, causal, every=bool(steps))
            if steps and layer.position is None:
                values["position"] = one_or_many(plan.position)
            node, kinds = self._layer_node(side, first, layer), entries[first].kinds
            yield RecipeRow(path, values, node, sentence("model.layer"), side, runs, kinds, self.notes)

    def _selection(self, side: Side, kind: str, deeper: bool) -> Callable[[int], bool]:
        """Return a predicate on layer indices: all, one index, one kind, or a kind named in resolved.yaml."""
        plan, entries = self.plans[side], self.resolver.entries[side]
        if kind == "layer":
            return lambda index: True
        if kind.isdecimal():
            return int(kind).__eq__
        if kind in mapping(self.resolver.texts[side].keys.get("layers")):  # the kind itself is shown as written
            return lambda index: deeper and kind in entries[index].kinds
        numbers = set(kind_names(plan).get(kind, ()))
        return lambda index: plan.order[index] in numbers

    def _below(self, rows: Sequence[RecipeRow], steps: Sequence[str], path: str) -> list[RecipeRow]:
        """Return the nested rows at `steps` of each row that has them; raise UsageError if none does."""
        for step in steps:
            below = [child for row in rows if (child := row.child(step)) is not None]
            if not below:
                raise self._unknown(path, step, rows[-1])
            rows = below
        return list(rows)

    def _unknown(self, path: str, step: str, row: RecipeRow | None = None) -> UsageError:
        """Return the error for a missing key, which says how it was dropped or suggests a similar key."""
        for lost in () if row is None else row.dropped:
            if lost.path.rpartition(".")[2] == step and row is not None:
                written = f"it was {inline(lost.plain())} at {lost.place}"
                old = inline(row.dropped[0].plain())
                return UsageError(f"{path}: this option was dropped when the type changed from {old}; {written}")
        near = _nearest_key(path, list(self._known()))
        return UsageError(f"{path}: the recipe has no such key." + (f" Did you mean '{near}'?" if near else ""))

    def _known(self) -> dict[str, None]:
        """Return the keys of the recipe as users write them, and the mappings and lists that they are in."""
        rows = [self._section(key) for key in self.sections] + self._whole(list(self.plans), "model")
        known: dict[str, None] = dict.fromkeys(TOP)
        for row in rows:
            for leaf in row.leaves():
                for path in accumulate(leaf.path.split("."), "{}.{}".format):
                    for one in (re.sub(r"\[\d+\]$", "", path), path):
                        if row.side and len(self.plans) > 1:
                            known[one.replace("model.", f"model.{row.side}.", 1)] = None
                        known[one] = None
        return known


def _nearest_key(path: str, known: Sequence[str]) -> str | None:
    """Return the key in `known` most similar to `path`, by the full path or by its last word."""
    words = {key.rpartition(".")[2]: key for key in reversed(known)}
    last = path.rpartition(".")[2]
    if last in words:
        return nearest(path, [key for key in known if key.endswith(f".{last}")]) or words[last]
    near = nearest(path, list(known))
    return near or words.get(nearest(last, list(words)) or "")


def _dotted(steps: Sequence[str]) -> str:
    return ".".join(steps).replace(".[", "[")
