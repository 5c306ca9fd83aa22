"""Parser from recipe text to a tree of Nodes, each with its place.

PyYAML only turns the text into events. Scalars (YAML 1.2), aliases, merge keys and all limits are handled here, so no
tag can construct an object and alias bombs are not expanded.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from tfkit.core.errors import Fault, Place, RecipeError, with_article
from tfkit.core.synonyms import nearest
from tfkit.recipe.text import dialect
from tfkit.recipe.text.dialect import syntax_fault
from tfkit.recipe.text.node import Budget, Node, Scalar, Stop, kind, shorten, under
from tfkit.storage.files import why_missing

LANGUAGE = 1  # the version of the recipe language
MAX_BYTES = 1_000_000
MAPPING = "<mapping>"  # place of values from Python
# the C parser takes quadratic time for deep nesting, but yields events one by one and is stopped at the depth limit
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # possible in an escape sequence, but not in file names or UTF-8
_NO_CHARACTER = "contains a NUL or an unpaired surrogate, which is not allowed"
Locate = Callable[[Any], Place]


def read(path: str | Path, via: str = "") -> tuple[Node, list[Fault]]:
    """Parse the recipe file at `path`; return its tree and faults. Raise RecipeError if it cannot be read.

    `via` names the layer (a base, a variant) if the file is not the recipe itself.
    """
    return parse(read_bytes(path), str(path), via)


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a recipe file; raise RecipeError if it is missing, unreadable, a folder or too large."""
    place = Place(str(path))
    try:
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise OSError("not a regular file")  # a pipe may block forever
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise RecipeError([Fault(place, "", why_missing(path), near_file(Path(path)))]) from None
    except IsADirectoryError:
        raise RecipeError([Fault(place, "", "is a folder, not a recipe file", near_file(Path(path)))]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise RecipeError([Fault(place, "", f"cannot be read: {reason}")]) from None
    if len(content) > MAX_BYTES:
        raise RecipeError([Fault(place, "", f"larger than {MAX_BYTES:,} bytes, the limit for a recipe")])
    return content


def near_file(path: Path) -> str | None:
    """Suggest a recipe with a similar name, or for a folder the only recipe in it; nothing for a broken link."""
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    try:
        names = sorted(entry.name for entry in islice(folder.iterdir(), 10_000) if entry.suffix in (".yaml", ".yml"))
    except (OSError, ValueError):
        return None
    if is_folder:
        return str(folder / names[0]) if len(names) == 1 else None
    if path.name in names:
        return None
    suggestion = nearest(path.name, names) or nearest(path.stem, [Path(name).stem for name in names])
    if suggestion is None:
        return None
    return str(folder / next(name for name in names if suggestion in (name, Path(name).stem)))


def parse(source: str | bytes, file: str, via: str = "") -> tuple[Node, list[Fault]]:
    """Parse the text of a recipe; return its tree and all faults.

    If the text is not a single valid mapping (syntax error, not UTF-8, too deep, too large), the value of the root is
    None. Otherwise the tree contains every value that could be parsed.
    """
    start = Place(file, 1, 1, via)
    faults: list[Fault] = []
    try:
        text = _decoded(source, file)

        def locate(mark: Any) -> Place:
            return Place(file, mark.line + 1, mark.column + 1, via)

        builder = _Builder(text, locate, faults)
        return builder.document(start), faults
    except Stop as stop:
        return Node(None, start), [*faults, stop.fault]


def parse_value(text: str, place: Place, path: str) -> tuple[Node, list[Fault]]:
    """Parse the value of `--set path=text`, written in flow style: `1e3`, `[a, b]`, `{type: x}`, a word."""
    faults: list[Fault] = []
    try:
        if len(text) > MAX_BYTES:
            raise Stop(place, path, f"longer than {MAX_BYTES:,} characters")
        _refuse_unprintable(text, lambda line, column: place, path)
        return _Builder(f"[{text}\n]", lambda mark: place, faults).single(place, path), faults
    except Stop as stop:
        return Node(None, place, path, place), [*faults, Fault(place, path, stop.fault.message)]


def from_mapping(data: Mapping[str, object], label: str = MAPPING) -> tuple[Node, list[Fault]]:
    """Convert nested Python data to a tree: mappings, lists, tuples, strings, numbers, booleans, None, paths."""
    return from_value(data, Place(label), "")


def from_value(data: object, place: Place, path: str) -> tuple[Node, list[Fault]]:
    """Convert a Python value to a tree located at `place`; return the tree and its faults."""
    converter = _Converter(place)
    try:
        return converter.node(data, path, 0), converter.faults
    except Stop as stop:
        return Node(None, place, path), [*converter.faults, stop.fault]


def _decoded(source: str | bytes, file: str) -> str:
    """Decode the text and remove a byte order mark; raise Stop at the first invalid byte or character."""
    size = len(source)
    if size > MAX_BYTES or (isinstance(source, str) and len(source.encode(errors="replace")) > MAX_BYTES):
        raise Stop(Place(file), "", f"larger than {MAX_BYTES:,} bytes, the limit for a recipe")
    try:
        text = (source if isinstance(source, str) else source.decode("utf-8")).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8")
        utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        what = "this is UTF-16" if utf16 else f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        place = Place(file, *_line_and_column(before, len(before)))
        raise Stop(place, "", f"{what}; save the file as UTF-8") from None
    _refuse_unprintable(text, lambda line, column: Place(file, line, column), "")
    return text


def _refuse_unprintable(text: str, locate: Callable[[int, int], Place], path: str) -> None:
    match = _UNPRINTABLE.search(text)
    if match:
        place = locate(*_line_and_column(text, match.start()))
        raise Stop(place, path, f"the character U+{ord(match[0]):04X} is not allowed in a recipe")


def _line_and_column(text: str, index: int) -> tuple[int, int]:
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


class _Builder:
    """Converter from YAML events to Nodes. Faults are collected; Stop is raised if parsing cannot continue."""

    def __init__(self, text: str, locate: Locate, faults: list[Fault]) -> None:
        self.text = text
        self.locate = locate
        self.faults = faults
        self._events: Iterator[Event] = iter(yaml.parse(text, Loader=_LOADER))
        self._end = 0  # offset at which the last event ends
        self._budget = Budget()
        self._anchors: dict[str, Node | None] = {}  # None while the anchored value is being parsed

    def document(self, start: Place) -> Node:
        event = self._first()
        if event is None or (isinstance(event, ScalarEvent) and not event.value and not event.style):
            raise Stop(start, "", "the file is empty")
        root = self._node(event, "", 0)
        self._finish("")
        if not isinstance(root.value, dict):
            self._fault(root.place, "", f"expected a mapping of keys to values, got {kind(root)}")
            return Node(None, root.place)
        return root

    def single(self, place: Place, path: str) -> Node:
        """Return the only item of the list that `parse_value` wraps around its text."""
        self._first()
        event = self._next()
        if isinstance(event, SequenceEndEvent):
            raise Stop(place, path, dialect.EMPTY)
        start: Any = event.start_mark
        unbraced = isinstance(event, MappingStartEvent) and self.text[start.index] != "{"
        node = self._node(event, path, 0, place)
        end = self._end
        if unbraced:
            raise Stop(place, path, "a mapping needs braces: {key: value}; quote text that contains ': '")
        if not isinstance(self._next(), SequenceEndEvent):
            raise Stop(place, path, "several values; write a list as [a, b]; quote text that contains a comma")
        self._finish(path)
        rest = self.text[end:-2].strip()
        if rest:
            raise Stop(place, path, f"unexpected '{shorten(rest)}' after the value; quote the value if it is text")
        return node

    def _first(self) -> Event | None:
        """Return the first event of the first document, or None."""
        self._next()
        document = self._next()
        return None if isinstance(document, StreamEndEvent) else self._next()

    def _finish(self, path: str) -> None:
        """Consume the end of the document; report a second document."""
        self._next()
        event = self._next()
        if isinstance(event, DocumentStartEvent):
            message = "a second document starts here; a recipe must be a single document"
            self._fault(self.locate(event.start_mark), path, message)

    def _next(self) -> Event:
        try:
            event = next(self._events)
        except (yaml.YAMLError, ValueError) as error:
            raise Stop(*syntax_fault(error, self.text, self.locate)) from None
        end: Any = event.end_mark
        self._end = end.index
        return event

    def _fault(self, place: Place, path: str, message: str) -> None:
        self.faults.append(Fault(place, path, message))

    def _node(self, event: Event, path: str, depth: int, key_place: Place | None = None) -> Node:
        place = self.locate(event.start_mark)
        self._budget.charge(place, path, depth)
        if isinstance(event, AliasEvent):
            return self._alias(event.anchor or "", place, path, depth, key_place)
        if not isinstance(event, ScalarEvent | CollectionStartEvent):
            raise TypeError(f"a value cannot start with {event}")
        if event.tag is not None:
            tag = shorten(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self._fault(place, path, f"the tag {tag} is not allowed: a recipe is plain data")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        value: Scalar | list[Node] | dict[str, Node]
        if isinstance(event, ScalarEvent):
            # the parser locates an empty value at the next token, so its key is the better place
            value = self._scalar(event, place if event.value or key_place is None else key_place, path)
        else:
            is_mapping = isinstance(event, MappingStartEvent)
            value = self._mapping(path, depth) if is_mapping else self._sequence(path, depth)
        node = Node(value, place, path, key_place)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _scalar(self, event: ScalarEvent, place: Place, path: str) -> Scalar:
        try:
            if not event.style:
                return dialect.resolve(event.value)
            if _UNSTORABLE.search(event.value):  # quoted, or a block scalar
                raise dialect.Refused(_NO_CHARACTER)
            text: str = event.value
            return text
        except dialect.Refused as refused:
            self._fault(place, path, str(refused))
            return None

    def _sequence(self, path: str, depth: int) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            items.append(self._node(event, f"{path}[{len(items)}]", depth + 1))
        return items

    def _mapping(self, path: str, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        merged_at: Place | None = None
        while not isinstance(event := self._next(), MappingEndEvent):
            place = self.locate(event.start_mark)
            if isinstance(event, ScalarEvent) and event.value == "<<" and not event.style:
                self._refuse_twice("<<", merged_at, place, path)
                merged, merged_at = self._merge_key(path, depth, place), place
                continue
            key = self._key(event, path, depth)
            node = self._node(self._next(), path if key is None else under(path, key), depth + 1, place)
            if key is not None and key in own:
                self._refuse_twice(key, own[key].key_place, place, path)
            elif key is not None:
                own[key] = node
        return merged | own  # as in YAML, the mapping's own keys win, in any order

    def _refuse_twice(self, key: str, first: Place | None, place: Place, path: str) -> None:
        if first is not None:
            self._fault(place, under(path, key), f"duplicate key, first set at {first}")

    def _key(self, event: Event, path: str, depth: int) -> str | None:
        """Return the key that starts with `event`, or None after a fault."""
        place = self.locate(event.start_mark)
        if not isinstance(event, ScalarEvent):
            self._fault(place, path, "a key must be a plain word")
            self._node(event, path, depth + 1)
            return None
        if event.tag is not None or event.anchor is not None:
            self._fault(place, path, "tags and anchors of keys are not allowed")
        try:
            return event.value if event.style else dialect.resolve_key(event.value)
        except dialect.Refused as refused:
            message = "an empty key" if not event.value else str(refused)
            self._fault(place, path, message)
            return None

    def _merge_key(self, path: str, depth: int, place: Place) -> dict[str, Node]:
        """Return the keys merged by `<<: *anchor` or `<<: [*first, *second]`; earlier mappings win."""
        # counted at `depth`, since the merged keys are on the level of this mapping's own keys
        value = self._node(self._next(), path, depth, place)
        mappings = value.value if isinstance(value.value, list) else [value]
        merged: dict[str, Node] = {}
        for mapping in mappings:
            if not isinstance(mapping.value, dict):
                message = f"<< needs a mapping or a list of mappings, not {kind(mapping)}"
                self._fault(mapping.place, under(path, "<<"), message)
                continue
            merged = {**mapping.moved(path).entries, **merged}
        return merged

    def _alias(self, name: str, place: Place, path: str, depth: int, key_place: Place | None) -> Node:
        anchored = self._anchors.get(name)
        if anchored is None:
            circle = f"the alias *{name} refers to a value that contains it"
            message = circle if name in self._anchors else f"this alias needs an earlier anchor &{name}"
            self._fault(place, path, message)
            return Node(None, place, path, key_place)
        for inner_depth, inner in anchored.walk(depth):
            self._budget.charge(place, path, inner_depth, len(path) + len(inner.path) - len(anchored.path))
        return anchored.moved(path, key_place)


class _Converter:
    """Converter from Python data to Nodes. Faults are collected; Stop is raised for too deep or too large data."""

    def __init__(self, place: Place) -> None:
        self.faults: list[Fault] = []
        self._place = place
        self._budget = Budget()

    def node(self, data: Any, path: str, depth: int) -> Node:
        self._budget.charge(self._place, path, depth)
        value: Scalar | list[Node] | dict[str, Node]
        if isinstance(data, Mapping):
            value = {}
            for key, item in data.items():
                if type(key) is str or (type(key) is int and key >= 0):
                    value[str(key)] = self.node(item, under(path, str(key)), depth + 1)
                else:
                    self.faults.append(Fault(self._place, path, f"a key must be a word, not {shorten(repr(key))}"))
        elif isinstance(data, list | tuple):
            value = [self.node(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(data)]
        else:
            value = self._scalar(data, path)
        return Node(value, self._place, path, self._place)

    def _scalar(self, data: Any, path: str) -> Scalar:
        if data is None or data == "none":
            return None
        if isinstance(data, PurePath):
            return str(data)
        # exact types only: an enum or a NumPy number would be serialized differently
        if type(data) not in (bool, int, float, str):
            named = with_article(type(data).__name__)
            message = f"{named} is not a recipe value; use a str, int, float, bool, list or dict"
        elif type(data) is float and not math.isfinite(data):
            message = f"{data}: numbers must be finite"
        elif type(data) is int and abs(data) >= 10**dialect.LONGEST_NUMBER:
            message = f"a number with more than {dialect.LONGEST_NUMBER} digits"
        elif type(data) is str and _UNSTORABLE.search(data):
            message = _NO_CHARACTER
        else:
            value: Scalar = data
            return value
        self.faults.append(Fault(self._place, path, message))
        return None
