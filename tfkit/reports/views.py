"""Resolution of dotted recipe keys to places in the resolved recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tfkit.core.blueprint import StackPlan
from tfkit.core.errors import UsageError
from tfkit.core.shape import Side
from tfkit.core.synonyms import nearest
from tfkit.recipe.keys import MODEL, STACK, SUBLAYERS, TOP, sentence
from tfkit.recipe.load import Recipe
from tfkit.recipe.text.node import Node, inline, mapping
from tfkit.recipe.text.source import parse
from tfkit.recipe.views.origin import Value
from tfkit.recipe.views.resolved import (
    causal_by_type,
    kind_names,
    layer_values,
    model_values,
    one_or_many,
    stack_values,
)
from tfkit.reports.runs import Runs, places

COMPOSING = ("extends", "variants")
AS_WRITTEN = ("mask", "memory", "layers", "pattern")  # stack keys shown as written; each layer has the resolved value


@dataclass(frozen=True)
class View:
    """One place that a key refers to: a value, its stack, and its layers (None: outside the layers)."""

    value: Value
    side: Side | None = None
    layers: Runs | None = None
    kinds: tuple[str, ...] = ()  # pattern kinds of these layers
    causal: bool = False  # the model's type implies a causal mask


@dataclass(frozen=True)
class Found:
    """The places that key `path` refers to; several if stacks or layers may differ."""

    path: str
    views: list[View]
    note: str = ""


class KeyFinder:
    """Resolver of the keys of `recipe`."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.blueprint = recipe.blueprint()
        self.trace = recipe.trace()
        self.plans: dict[Side, StackPlan] = {plan.side: plan for plan in self.blueprint.stacks()}

    @cached_property
    def _values(self) -> dict[str, dict[str, Any]]:
        """Values of the model and of each stack by key."""
        stacks: dict[str, Any] = {side: stack_values(plan, self.blueprint) for side, plan in self.plans.items()}
        return {"model": model_values(self.blueprint), **stacks}

    def find(self, key: str) -> list[Found]:
        """Resolve `key`; a whole model or stack yields one entry per key in it.

        Raises UsageError for invalid keys, with the closest valid one.
        """
        steps = re.findall(r"\[\d+\]|[^.\[\]]+", key.strip())
        if not steps or _dotted(steps) != key.strip():
            raise UsageError(f"'{key}' is no dotted key like model.layer.dropout")
        if steps[0] not in TOP and (steps[0] in (*MODEL, *STACK)):
            steps = ["model", *steps]  # parameter-style names: decoder.layers.3
        if steps[0] == "model" and len(self.plans) == 1 and steps[1:2] == list(self.plans):
            del steps[1]
        path = _dotted(steps)
        try:
            if steps[0] == "model":
                return self._model(steps[1:], path)
            if steps[0] not in TOP:
                raise self._unknown(path, steps[0])
            return [Found(path, self._below([View(self._section(steps[0]))], steps[1:], path))]
        except UsageError:
            value = Value("", self.recipe.root.plain(), self.recipe.root)
            for step in steps:
                value = value.child(step) or Value("", None)
            if value.node is None:
                raise
            return [Found(path, [View(value)], note="as written; no layer or stack has this key when resolved")]

    def _section(self, key: str) -> Value:
        """Return a section other than `model`, or a key that composes the file."""
        if key in COMPOSING:
            text = self.recipe.text
            node = None if text is None else parse(text, str(self.recipe.file))[0].get(key)
            return Value(key, None if node is None else node.plain(), node, sentence(key))
        node = self.recipe.root.get(key)
        written = node.plain() if node is not None and key == "tfkit" else None
        values = {**self.recipe.sections(), "study": self.recipe.study}
        return Value(key, values.get(key, written), node, sentence(key))

    def _model(self, steps: Sequence[str], path: str) -> list[Found]:
        sides = list(self.plans)
        if steps and steps[0] in ("encoder", "decoder"):
            if steps[0] not in sides:
                raise UsageError(f"{path}: this model has no {steps[0]}; it has the {sides[0]} alone")
            sides, steps = [side for side in sides if side == steps[0]], steps[1:]
        if steps:
            return [Found(path, self._views(sides, steps, path))]
        own = [key for key in MODEL if key not in ("type", "encoder", "decoder")]
        keys = [*STACK] if len(sides) < len(self.plans) else ["type", *STACK, *own]
        found = [Found(f"{path}.{key}", self._views(sides, [key], path)) for key in keys]
        # listings omit keys that are none by default
        return [one for one in found if any(view.value.value is not None or view.value.node for view in one.views)]

    def _views(self, sides: Sequence[Side], steps: Sequence[str], path: str) -> list[View]:
        """Resolve `steps` below the model or some of its stacks."""
        key, rest = steps[0], list(steps[1:])
        if key in MODEL and len(sides) == len(self.plans):
            return self._below([View(self._value(f"model.{key}", "model", self.trace.model.get(key)))], rest, path)
        if key == "layer":
            return self._below([view for side in sides for view in self._layers(side, "layer", rest)], rest, path)
        if key == "layers" and rest:
            if views := [view for side in sides for view in self._layers(side, f"layers.{rest[0]}", rest[1:])]:
                return self._below(views, rest[1:], path)
            if rest[0].isdecimal():
                depths = " and ".join(f"the {side} has {self.plans[side].num_layers:,}" for side in sides)
                raise UsageError(f"{path}: layers are counted from 0, and {depths}")
        if key not in STACK:
            raise self._unknown(path, key)
        return self._below([View(self._stack(side, key), side) for side in sides], rest, path)

    def _below(self, views: Sequence[View], steps: Sequence[str], path: str) -> list[View]:
        """Descend `steps` in each view that has them; raises UsageError if none has."""
        found: list[View] = []
        for view in views:
            value: Value = view.value
            for step in steps:
                child = value.child(step)
                if child is None:
                    break
                value = child
            else:
                found.append(replace(view, value=value))
        if not found:
            raise self._unknown(path, step, value)
        return found

    def _value(self, path: str, owner: str, node: Node | None) -> Value:
        return Value(path, self._values[owner].get(path.rpartition(".")[2]), node, sentence(path))

    def _stack(self, side: Side, key: str) -> Value:
        """Resolve one key of a stack."""
        trace, path = self.trace.stacks[side], self._path(side, key)
        if key not in AS_WRITTEN:
            return self._value(path, side, trace.node.get(key))
        node = trace.keys.get(key)
        return Value(path, None if node is None else node.plain(), node, sentence(path))

    def _layers(self, side: Side, name: str, steps: Sequence[str]) -> Iterator[View]:
        """Yield the layers that `name` refers to, grouped by source text."""
        plan, trace = self.plans[side], self.trace.stacks[side]
        causal, wanted = causal_by_type(plan, self.blueprint), self._wanted(side, name, bool(steps))
        texts: dict[int, int] = {}
        order = [texts.setdefault(id(node), len(texts)) for node in trace.layers]
        found = places([text if wanted(index) else -1 for index, text in enumerate(order)])
        for runs in (runs for text, runs in found.items() if text >= 0):
            first = runs[0][0]
            layer = plan.layers[plan.order[first]]
            values = layer_values(layer, causal)
            if steps:  # keys omitted from listings
                own = {f"{sublayer.name}_norm": sublayer.norm for sublayer in layer.sublayers}
                unsaid = {"shared": layer.shared, "position": one_or_many(plan.position)}
                values = dict.fromkeys(SUBLAYERS) | unsaid | own | values
            value = Value(self._path(side, name), values, trace.layer(first, layer), sentence("model.layer"))
            yield View(value, side, runs, trace.entries[first].kinds, causal)

    def _wanted(self, side: Side, name: str, deeper: bool) -> Callable[[int], bool]:
        """Return the layer filter: all, by number, by kind, or by a kind name of resolved.yaml."""
        plan, trace, kind = self.plans[side], self.trace.stacks[side], name.removeprefix("layers.")
        if kind == name:
            return lambda index: True
        if kind.isdecimal():
            return int(kind).__eq__
        if kind in mapping(trace.keys.get("layers")):  # without further steps: the kind as written
            return lambda index: deeper and kind in trace.entries[index].kinds
        numbers = set(kind_names(plan).get(kind, ()))
        return lambda index: plan.order[index] in numbers

    def _path(self, side: Side, key: str) -> str:
        return f"model.{side}.{key}" if len(self.plans) > 1 else f"model.{key}"

    def _unknown(self, path: str, step: str, value: Value | None = None) -> UsageError:
        """Build the error for a missing key, with what removed it or the closest key."""
        for lost in () if value is None or value.node is None else value.node.dropped:
            if lost.path.rpartition(".")[2] == step:
                old = value.node.dropped[0]  # type: ignore[union-attr]
                written = f"it said {_inline(lost)} at {lost.place}"
                return UsageError(f"{path}: was dropped when the type changed from {_inline(old)}; {written}")
        near = _nearest_key(path, list(self._known()))
        return UsageError(f"{path}: the recipe has no such key." + (f" Did you mean '{near}'?" if near else ""))

    def _known(self) -> Iterator[str]:
        """Yield the recipe's keys in user notation."""
        yield from TOP
        for key in (*self.recipe.sections(), *(["study"] if self.recipe.study is not None else [])):
            yield from (leaf.path for leaf in self._section(key).leaves())
        for found in self._model([], "model"):
            for view in found.views:
                for leaf in view.value.leaves():
                    yield from dict.fromkeys([leaf.path, re.sub(r"^model\.(encoder|decoder)\.", "model.", leaf.path)])


def _nearest_key(path: str, known: Sequence[str]) -> str | None:
    """Return the key in `known` closest to `path`, by full path or by last word."""
    words = {key.rpartition(".")[2]: key for key in reversed(known)}
    last = path.rpartition(".")[2]
    if last in words:
        return nearest(path, [key for key in known if key.endswith(f".{last}")]) or words[last]
    near = nearest(path, list(known))
    return near or words.get(nearest(last, list(words)) or "")


def _dotted(steps: Sequence[str]) -> str:
    return ".".join(steps).replace(".[", "[")


def _inline(node: Node) -> str:
    return inline(node.plain())
