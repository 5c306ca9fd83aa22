"""Rows of a resolved recipe: a key, its value, its description and its origin, for runs of equal layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from tfkit.core.component import Config, Side, spell
from tfkit.core.errors import Place
from tfkit.recipe.keys import sentence
from tfkit.recipe.overlays import as_part, is_section
from tfkit.recipe.text.node import Node, inline, items, mapping, shorten, under

Runs = list[tuple[int, int]]  # ascending ranges of layers: (first, last), inclusive
SHOWN_RUNS = 12
FEW_RUNS = 4  # shown in a cell of a table


def places(order: Sequence[int]) -> dict[int, Runs]:
    """Map each kind to its ranges in the layer order of a stack."""
    runs: dict[int, Runs] = {}
    first = 0
    for kind, same in groupby(order):
        after = first + sum(1 for _ in same)
        runs.setdefault(kind, []).append((first, after - 1))
        first = after
    return runs


def joined(runs: Iterable[tuple[int, int]]) -> Runs:
    """Sort ranges and merge adjacent ones."""
    merged: Runs = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def label(runs: Runs) -> str:
    """Format ranges as `layer 3` or `layers 0-4, 6-10`; a long list is truncated and followed by the total."""
    count = sum(last - first + 1 for first, last in runs)
    more = f" ({count:,} in all)" * (len(runs) > SHOWN_RUNS)
    return f"layer{'s' * (count > 1)} {numbers(runs, SHOWN_RUNS)}{more}"


def numbers(runs: Runs, most: int = FEW_RUNS) -> str:
    """Format ranges as `0-5`, or as `0, 2, 4 ...` if there are more than `most`."""
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words) if len(words) <= most else ", ".join(words[: most - 1]) + " ..."


STACK = re.compile(r"^model\.(encoder|decoder)(?=\.|$)")
KIND = re.compile(r"^model\.layers\.(\w+)(?=\.|$)")
Notes = Mapping[tuple[str, int], str]  # (file, line) -> comment in resolved.yaml


@dataclass(frozen=True)
class RecipeRow:
    """A resolved value (a part, section, list or plain value); nested values are rows of their own.

    `path` is its key, `node` its source (None for a default), and `sentence` its description. For a value in layers,
    `layers` are the layers of the stack `side` that have it, and `kinds` the kinds they are built from.
    """

    path: str
    value: Any
    node: Node | None = None
    sentence: str = ""
    side: Side | None = None
    layers: Runs | None = None
    kinds: tuple[str, ...] = ()
    notes: Notes | None = None  # comments of the run's resolved.yaml, if the recipe is that of a run
    is_resolved: bool = True  # False for a value in the merged text that no stack or layer uses
    where: str = ""  # the stacks and layers with this value, if others have a different one

    def children(self) -> list[RecipeRow]:
        """Return the rows of the nested values; empty for a plain value."""
        if isinstance(self.value, BaseModel):
            return list(self._options(self.value))
        if isinstance(self.value, Mapping):
            nodes = mapping(self.node)
            paths = {key: under(self.path, key) for key in self.value}
            return [
                self._at(path, self.value[key], nodes.get(key), sentence(path) or self.sentence)
                for key, path in paths.items()
            ]
        if isinstance(self.value, list | tuple) and any(isinstance(item, BaseModel | Mapping) for item in self.value):
            written = [*items(self.node), *[None] * len(self.value)]  # the items of a default have no source
            pairs = enumerate(zip(self.value, written, strict=False))
            return [self._at(f"{self.path}[{index}]", item, node, self.sentence) for index, (item, node) in pairs]
        return []

    def _options(self, options: BaseModel) -> Iterator[RecipeRow]:
        nodes = mapping(None if self.node is None else as_part(self.node))
        owner = self.sentence  # description of options that have none
        if isinstance(options, Config):
            yield self._at(under(self.path, "type"), options.part.part_name, nodes.get("type"), owner)
            owner = ""
        for name, field in type(options).model_fields.items():
            yield self._at(under(self.path, name), getattr(options, name), nodes.get(name), field.description or owner)

    def _at(self, path: str, value: Any, node: Node | None, sentence: str) -> RecipeRow:
        return replace(self, path=path, value=value, node=node, sentence=sentence)

    def child(self, key: str) -> RecipeRow | None:
        """Return the nested row at `key`, a word or `[index]`."""
        path = f"{self.path}{key}" if key.startswith("[") else under(self.path, key)
        return next((child for child in self.children() if child.path == path), None)

    def leaves(self) -> Iterator[RecipeRow]:
        """Yield the nested rows with plain values in order, or this row if it is plain."""
        children = self.children()
        if not children:
            yield self
        for child in children:
            yield from child.leaves()

    def plain(self) -> Any:
        return spell(self.value)

    @property
    def origin(self) -> Origin:
        """Place or default that the value comes from."""
        return Origin(None, self.sentence) if self.node is None else self._origin(self.node)

    @property
    def replaced(self) -> list[tuple[Any, Origin]]:
        """Replaced values with their origins, most recent first."""
        earlier = []
        node = self.node
        while node is not None and (node := node.under) is not None:
            earlier.append((node.plain(), replace(self._origin(node), written="")))
        return earlier

    @property
    def dropped(self) -> tuple[Node, ...]:
        """Options lost when the type changed."""
        return () if self.node is None else self.node.dropped

    def _origin(self, node: Node) -> Origin:
        """Return the origin of the value if `node` sets it."""
        noted = (self.notes or {}).get((node.place.file, node.place.line), "")
        if noted.startswith("default"):
            return Origin(None, self.sentence)
        kind = KIND.match(STACK.sub("model", node.path))
        inherited = STACK.match(self.path) is not None and STACK.match(node.path) is None
        text, value = node.plain(), self.plain()
        written = (
            "" if text == value or isinstance(value, dict | list) or isinstance(text, dict | list) else inline(text)
        )
        source = _source(self.path, node.path)
        return Origin(node.place, self.sentence, kind[1] if kind else "", source, inherited, written, noted)


@dataclass(frozen=True)
class Origin:
    """Origin of a value: the place that sets it, or None for a default, which `sentence` describes."""

    place: Place | None
    sentence: str = ""
    kind: str = ""  # the kind in `layers` that sets the value
    source: str = ""  # the key that the value is derived from
    inherited: bool = False  # True if `model` sets the value for both stacks
    written: str = ""  # the source text, if it differs from the value
    noted: str = ""  # the comment from the run's resolved.yaml, as formatted by `short`

    @property
    def by(self) -> str:
        """Category of the origin: default, Python, command line, kind, variant, base or file."""
        if self.place is None:
            return "default"
        if self.place.file.startswith("<"):
            return "Python"
        if self.place.file.startswith("--"):
            return "command line"
        return "kind" if self.kind else self.place.via.partition(" ")[0] or "file"

    def short(self) -> str:
        """Format for a comment: `mine.yaml:12:7`, `gpt2.yaml:13:40, base gpt2`, `default: heads of queries`."""
        if self.noted:
            return self.noted
        if self.place is None:
            return f"default: {self.sentence}" if self.sentence else "default"
        words = ["Python" if self.by == "Python" else one_line(str(self.place))]
        words += [one_line(self.place.via)] * bool(self.place.via)
        words += [f"kind {self.kind}"] * bool(self.kind) + [f"from {self.source}"] * bool(self.source)
        return ", ".join(words)

    def words(self) -> str:
        """Format in full: `base recipe gpt2 (gpt2.yaml:13:40)`, `the command line (--set model.num_layers=4)`."""
        kind = [f"kind '{self.kind}' of the pattern"] if self.kind else []
        if self.place is None:
            text = self.short()
        elif self.noted:
            text = f"{self.noted} (noted at {self.place})"
        elif self.by == "Python":
            text = ", ".join([*kind, "Python"])
        elif self.by == "command line":
            text = ", ".join([f"the command line ({one_line(str(self.place))})", *kind])
        else:
            via = re.sub(r"\bbase (?=\S)", "base recipe ", one_line(self.place.via))
            source = ", ".join([*kind, *([via] if via else [])])
            text = f"{source} ({self.place})" if source else str(self.place)
        if self.source:
            text = f"derived from {self.source}: {text}"
        elif self.inherited:
            text += ", in model for both stacks"
        return f"{text}, written as {self.written}" if self.written else text


def _source(path: str, written: str) -> str:
    """Return the key that a value at `path` is derived from: the prefix of `written` that differs, or ""."""
    # kinds become `model.layer`, stacks become `model`, and indices are removed
    bare = [re.sub(r"\[\d+\]", "", STACK.sub("model", text)) for text in (path, written)]
    own, other = (re.sub(r"^model\.layers\.\w+(?=\.|$)", "model.layer", text).split(".") for text in bare)
    if own == other:
        return ""
    tail = 0
    while tail < min(len(own), len(other)) - 1 and own[-1 - tail] == other[-1 - tail]:
        tail += 1
    keys = written.split(".")
    source = ".".join(keys[: len(keys) - tail])
    return ".".join(keys[: len(keys) - tail + 1]) if is_section(source) else source  # model.layer.norm, not model.layer


def one_line(text: str) -> str:
    """Replace unprintable characters, such as a newline in a file name, so that the text fits in a comment."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return shorten(printable, max(len(text), 1))
