"""Where everything stands in a recipe's text: what is needed to change a value and leave the rest as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
)

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class OutlineEntry(NamedTuple):
    """A key of a mapping and its value; the name is None where the key is `<<`."""

    name: str | None
    key: Piece
    value: Piece


@dataclass(frozen=True, eq=False)
class Piece:
    """A stretch of the text, `start` to `end` in characters: with its anchor, without what only follows it.

    `column` (from 0) is that of what a block collection begins with; `inside` is where the last thing in a collection
    ends.
    """

    start: int
    end: int
    line: int  # from 1
    column: int
    inside: int = 0
    flow: bool = False  # written in brackets
    anchor: str | None = None
    entries: Sequence[OutlineEntry] | None = None  # of a mapping
    items: Sequence[Piece] | None = None  # of a list

    @property
    def block(self) -> bool:
        """Whether this is a collection written in lines, without brackets."""
        return (self.entries is not None or self.items is not None) and not self.flow

    def walk(self) -> Iterator[Piece]:
        """This piece and all below it, in the order of the text; what an alias stands for is elsewhere."""
        yield self
        for child in self.items or [entry.value for entry in self.entries or ()]:
            yield from child.walk()


@dataclass(frozen=True, eq=False, kw_only=True)
class Alias(Piece):
    """A `*name` in the text, and the piece that it stands for."""

    target: Piece


def outline(text: str) -> Piece:
    """The outline of a text that `source.parse` has read without a fault: the one mapping that it is."""
    return _Outliner(text).document()


class _Outliner:
    """Builds pieces from the events of one text."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Event] = iter(yaml.parse(text, Loader=_LOADER))
        self._anchors: dict[str, Piece] = {}

    def document(self) -> Piece:
        """The piece of the first document."""
        event = next(event for event in self._events if isinstance(event, NodeEvent))
        return self._piece(event)

    def _piece(self, event: Event) -> Piece:
        if isinstance(event, AliasEvent):
            return Alias(*_marks(event), target=self._anchors[event.anchor or ""])
        if not isinstance(event, ScalarEvent | CollectionStartEvent):
            raise TypeError(f"no value begins with {event}")
        if isinstance(event, ScalarEvent):
            piece = Piece(*_marks(event), anchor=event.anchor)
        elif isinstance(event, MappingStartEvent):
            piece = self._mapping(event)
        else:
            piece = self._sequence(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = piece
        return piece

    def _mapping(self, event: MappingStartEvent) -> Piece:
        entries: list[OutlineEntry] = []
        while not isinstance(following := next(self._events), MappingEndEvent):
            entries.append(OutlineEntry(_name(following), self._piece(following), self._piece(next(self._events))))
        whole = _collection(event, following, [entry.value for entry in entries])
        column = entries[0].key.column if entries else whole.column
        return replace(whole, column=column, entries=entries)

    def _sequence(self, event: CollectionStartEvent) -> Piece:
        items: list[Piece] = []
        while not isinstance(following := next(self._events), SequenceEndEvent):
            items.append(self._piece(following))
        return replace(_collection(event, following, items), items=items)


def _name(key: Event) -> str | None:
    """The name of a key; None for a plain `<<`."""
    if not isinstance(key, ScalarEvent) or (key.value == "<<" and not key.style):
        return None
    return key.value


def _collection(event: CollectionStartEvent, ending: Event, children: Sequence[Piece]) -> Piece:
    """The piece of a collection. The parser lets one in block style end where the next thing begins, lines later."""
    start, opened, line, column = _marks(event)
    inside = children[-1].end if children else opened
    flow = bool(event.flow_style)
    return Piece(start, _marks(ending)[1] if flow else inside, line, column, inside, flow, event.anchor)


def _marks(event: Event) -> tuple[int, int, int, int]:
    start: Any = event.start_mark
    end: Any = event.end_mark
    return start.index, end.index, start.line + 1, start.column
