"""Node, a recipe value with its place and path, and helpers to access nested values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfkit.core.errors import Fault, Place

MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
MAX_NODES = 100_000
# each node stores its path: long keys with many values below them would expand a small file to gigabytes
MAX_PATH_LETTERS = 20_000_000
# characters that recipes forbid, or that break or reorder a line on display
_MISREAD = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
_NO_TEXT = {"none", "null", "true", "false", "yes", "no", "on", "off", "y", "n"}
Scalar = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Node:
    """A recipe value with its place.

    `path` is dotted as in the recipe (`model.layer.attention.num_heads`, `model.pattern[2]`); `key_place` is the place
    of its key; `dropped` are the options lost in a merge that changed the part's type; `under` is the value that it
    replaced. A value that could not be parsed is None. Nodes are immutable, so trees may share them.
    """

    value: Scalar | list[Node] | dict[str, Node]
    place: Place
    path: str = ""
    key_place: Place | None = None
    dropped: tuple[Node, ...] = ()
    under: Node | None = field(default=None, compare=False, repr=False)

    @property
    def entries(self) -> Mapping[str, Node]:
        """Keys and values of a mapping; empty for other values."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> Sequence[Node]:
        """Items of a list; empty for other values."""
        return self.value if isinstance(self.value, list) else ()

    def get(self, key: str) -> Node | None:
        """Return the value of `key`, or None if it is missing or this is not a mapping."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def plain(self) -> Any:
        """Convert to nested plain Python data."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    @property
    def folder(self) -> Path | None:
        """Folder of the node's file; None for values from the command line or Python."""
        return folder_of(self.place)

    @property
    def is_change(self) -> bool:
        """True for values from the command line, or from `overrides` in Python."""
        return self.place.file.startswith("--") or self.place.file == "<overrides>"

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Yield this node and its descendants with their depths."""
        yield depth, self
        if isinstance(self.value, dict | list):
            for child in self.value.values() if isinstance(self.value, dict) else self.value:
                yield from child.walk(depth + 1)

    def moved(self, path: str, key_place: Place | None = None) -> Node:
        """Return a copy with another path; places are unchanged."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.moved(under(path, key), child.key_place) for key, child in value.items()}
        elif isinstance(value, list):
            value = [child.moved(f"{path}[{index}]") for index, child in enumerate(value)]
        return replace(self, value=value, path=path, key_place=key_place or self.key_place)

    def over(self, base: Node) -> Node:
        """Return a copy that records `base` as the oldest value it replaces."""
        return replace(self, under=base if self.under is None else self.under.over(base))

    def came(self, via: str) -> Node:
        """Return a copy whose places name `via` (a variant, a base) as their layer."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.came(via) for key, child in value.items()}
        elif isinstance(value, list):
            value = [child.came(via) for child in value]
        through = f"{via} of {self.place.via}" if self.place.via else via
        key_place = None if self.key_place is None else replace(self.key_place, via=through)
        return replace(self, value=value, place=replace(self.place, via=through), key_place=key_place)


def under(path: str, key: str) -> str:
    """Join `path` and `key` to a dotted path."""
    return f"{path}.{key}" if path else key


def folder_of(place: Place) -> Path | None:
    """Return the folder of the place's file; None for the command line and Python."""
    written_nowhere = place.file.startswith("--") or (place.file.startswith("<") and place.file.endswith(">"))
    return None if written_nowhere else Path(place.file).parent


def shorten(text: str, width: int = 40) -> str:
    """Put `text` on one line and truncate it to `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def kind(node: Node) -> str:
    """Describe the type of a node's value for messages."""
    value = node.value
    if isinstance(value, str):
        return f"the word '{shorten(value)}'"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return inline(value) if value is None or isinstance(value, bool) else f"the number {value}"


def inline(value: object) -> str:
    """Format plain data in recipe syntax on one line."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{', '.join(map(inline, value))}]"
        case dict():
            return "{" + ", ".join(f"{inline(key)}: {inline(item)}" for key, item in value.items()) + "}"
        case str():
            # text without quotes must read back as text anywhere in a recipe
            plain = re.fullmatch(r"[A-Za-z_][\w./+*-]*", value) is not None and value.lower() not in _NO_TEXT
            return value if plain else quoted(value)
        case _:
            return re.sub(r"e(-?)\+?0*(\d)", r"e\1\2", repr(value))  # 1e-09 to 1e-9, 1e+16 to 1e16


def quoted(text: str) -> str:
    """Quote a text, escaping characters that recipes forbid or that break a line."""
    return _MISREAD.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


class Stop(Exception):
    """Signal that parsing cannot continue after `.fault`."""

    def __init__(self, place: Place, path: str, message: str) -> None:
        self.fault = Fault(place, path, message)
        super().__init__(str(self.fault))


class Budget:
    """Limit on the nodes and the nesting depth of one recipe, checked for every node to stop alias bombs early."""

    def __init__(self) -> None:
        self._nodes = 0
        self._letters = 0

    def charge(self, place: Place, path: str, depth: int, letters: int | None = None) -> None:
        """Count one node; raise Stop if the recipe is too deep or too large."""
        self._nodes += 1
        self._letters += len(path) if letters is None else letters
        if depth > MAX_DEPTH:
            raise Stop(place, shorten(path, 80), TOO_DEEP)
        if self._nodes > MAX_NODES or self._letters > MAX_PATH_LETTERS:
            raise Stop(place, shorten(path, 80), f"too large: more than {MAX_NODES:,} values with aliases expanded")


def node_at(keys: Mapping[str, Node], name: str) -> Node | None:
    """Return the node of `name`; None if missing or `none`."""
    node = keys.get(name)
    return None if node is None or node.value is None else node


def items(node: Node | None) -> list[Node]:
    """Return the nodes of a part or of a list of parts; empty for none."""
    if node is None or node.value is None:
        return []
    return node.value if isinstance(node.value, list) else [node]


def one_or_list(node: Node | None, items: list[Node]) -> Node | None:
    """Return a single item itself, several items as a list in place of `node`, or `node` if there are no items."""
    if len(items) == 1:
        return items[0]
    return node if node is None or not items else replace(node, value=items)


def mapping(node: Node | None) -> Mapping[str, Node]:
    """Return the children of a mapping; empty for other values."""
    return node.value if node is not None and isinstance(node.value, dict) else {}
