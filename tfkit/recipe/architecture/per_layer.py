"""Values per layer: `{per_layer: [...]}` (rule R5 of the language)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node

NO_PARTS = "per_layer gives numbers, words or booleans; parts vary by kinds (`layers:` and `pattern:`)"
_IN_KIND = re.compile(r"\.layers\.(\w+)\.")

Kinds = tuple[str, ...]


def varies(node: Node) -> bool:
    """True if `node` contains a `{per_layer: [...]}`."""
    return next(_choices(node), None) is not None


def is_per_layer(node: Node) -> bool:
    """True if `node` itself is a `{per_layer: [...]}`."""
    return isinstance(node.value, dict) and "per_layer" in node.value


def _choices(node: Node) -> Iterator[Node]:
    """Yield every `{per_layer: [...]}` in `node`."""
    if is_per_layer(node):
        yield node
    elif isinstance(node.value, (dict, list)):
        for child in node.value.values() if isinstance(node.value, dict) else node.value:
            yield from _choices(child)


class Turns:
    """Iterates over the layers of a stack and selects the value of each `{per_layer: [...]}`.

    `texts` are the texts of the layers by kinds, `layers` the kinds of each layer in order. A list inside a kind has
    one value for each layer of that kind; any other, one for each layer.
    """

    def __init__(self, texts: Mapping[Kinds, Node], layers: Sequence[Kinds]) -> None:
        self.texts = texts
        self._choices = {kinds: list(_choices(node)) for kinds, node in texts.items()}
        self._counts = Counter(chain.from_iterable(layers))
        self._counts[""] = len(layers)
        counting = {self._kind(choice) for choice in chain.from_iterable(self._choices.values())}
        self._counting = {kinds: [kind for kind in ("", *kinds) if kind in counting] for kinds in texts}
        self._turns = Counter[str]()

    @property
    def first(self) -> Node:
        """The first list."""
        return next(chain.from_iterable(self._choices.values()))

    def check(self, faults: Faults) -> bool:
        """Return True if each list has one value per layer that it applies to; add faults otherwise."""
        before = len(faults.found)
        for choice in chain.from_iterable(self._choices.values()):
            self._check(choice, faults)
        return len(faults.found) == before

    def _check(self, choice: Node, faults: Faults) -> None:
        values, kind = choice.entries["per_layer"], self._kind(choice)
        if len(choice.entries) > 1 or not isinstance(values.value, list):
            return faults.add(choice, "per_layer stands alone, with a list: {per_layer: [32, 64]}")
        if len(values.value) != self._counts[kind]:
            text = f"kind '{kind}'" if kind else "`layer`"
            return faults.add(values, f"has {len(values.value)} values, {text} describes {self._counts[kind]} layers")
        for value in values.value:
            if isinstance(value.value, (dict, list)):
                faults.add(value, NO_PARTS)

    def _kind(self, choice: Node) -> str:
        """Return the kind that contains the list, "" if none."""
        found = _IN_KIND.search(f"{choice.path}.")
        return found[1] if found and found[1] in self._counts else ""

    def fixed(self, kinds: Kinds) -> bool:
        """True if layers of these kinds select no values and are not counted by a list."""
        return not self._choices[kinds] and not self._counting[kinds]

    def values(self, kinds: Kinds) -> tuple[object, ...]:
        """Return the values selected by the next layer, of these kinds, which determine its text. True is not 1."""
        picked = [self._picked(choice).value for choice in self._choices[kinds]]
        return tuple((type(value), value) for value in picked)

    def text(self, kinds: Kinds) -> Node:
        """Return the text of the next layer, of these kinds."""
        return self._pick(self.texts[kinds])

    def step(self, kinds: Kinds) -> None:
        """Advance past the next layer, of these kinds."""
        for kind in self._counting[kinds]:
            self._turns[kind] += 1

    def _pick(self, node: Node) -> Node:
        if is_per_layer(node):
            return replace(self._picked(node), path=node.path, under=node.under)
        if isinstance(node.value, list):
            return replace(node, value=[self._pick(child) for child in node.value])
        if not isinstance(node.value, dict):
            return node
        return replace(node, value={key: self._pick(child) for key, child in node.value.items()})

    def _picked(self, choice: Node) -> Node:
        values = choice.entries["per_layer"].items
        return values[self._turns[self._kind(choice)]]
