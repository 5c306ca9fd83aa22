"""Changing values in a recipe's text: only what changes is written anew; comments, order and spacing stay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfkit.core.errors import Fault, RecipeError, UsageError
from tfkit.recipe.changes.outline import Alias, OutlineEntry, Piece, outline
from tfkit.recipe.overlays.merge import is_section, merge
from tfkit.recipe.overlays.overlay import override_overlay
from tfkit.recipe.text.node import Node, inline, under
from tfkit.recipe.text.source import parse

WIDTH = 120  # of a line
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_ABSENT = object()


def edited(text: str, key: str, value: Any, file: str = "<text>") -> str:
    """The text with `value` laid at the dotted `key` by the merge rule (R20); `file` is what faults call the text.

    Raises RecipeError where the text or the key is wrong or nothing can be laid there, UsageError where an anchor
    stands in the way.
    """
    faults: list[Fault] = []
    overlay = override_overlay(key, value, faults)
    if overlay is None:
        raise RecipeError(faults)
    return laid(text, overlay, file)


def laid(text: str, overlay: Node, file: str = "<text>") -> str:
    """The text with a tree of values laid over it by the merge rule (R20); raises as `edited` does."""
    root = _read(text, file)
    faults: list[Fault] = []
    merged = merge(root, overlay, faults)
    if faults:
        raise RecipeError(faults)
    return rewritten(text, _as_written(root, overlay, merged), file)


def rewritten(text: str, wanted: Mapping[str, Any], file: str = "<text>") -> str:
    """The text changed just so far that it reads as `wanted`; a part of another type is written anew as a whole.

    Raises RecipeError where the text is wrong, UsageError where an anchor stands in the way.
    """
    current = _read(text, file).plain()
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix("\ufeff")
    rewriter = _Rewriter(body, outline(body), file)
    result = mark + rewriter.result(current, dict(wanted))
    root, faults = parse(result, file)
    if faults or not _same(root.plain(), wanted):
        raise UsageError(f"{file}: this cannot be written into the text as it stands; change it by hand")
    return result


def written(data: Mapping[str, Any]) -> str:
    """The text of a recipe that reads as `data`."""
    lines = [line for key, value in data.items() for line in _lines(key, value, key, 0)]
    return "".join(f"{line}\n" for line in lines) or "{}\n"


def _read(text: str, file: str) -> Node:
    root, faults = parse(text, file)
    if faults:
        raise RecipeError(faults)
    return root


def _as_written(base: Node | None, over: Node, merged: Node) -> Any:
    """What is merged as plain data, where a word that replaces a part stays the word that was written."""
    if isinstance(over.value, dict) and isinstance(merged.value, dict):
        values = {
            key: _as_written(base and base.get(key), child, merged.value[key]) for key, child in over.value.items()
        }
        return {key: values[key] if key in values else child.plain() for key, child in merged.value.items()}
    plain = merged.plain()
    if isinstance(over.value, str) and plain == {"type": over.value} and not (base and _same(base.plain(), plain)):
        return over.value
    return plain


def _same(one: Any, other: Any) -> bool:
    """Equality that tells true from 1 and 1 from 1.0, and asks for no order of keys."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _lines(key: str, value: Any, path: str, indent: int) -> list[str]:
    """A key and its value as lines in block style; what is short and no section stands in brackets on one line."""
    head = f"{' ' * indent}{inline(key)}:"
    line = f"{head} {inline(value)}"
    if not isinstance(value, dict) or not value:
        return [line]
    spread = "." not in path or (is_section(path) and any(isinstance(child, dict) for child in value.values()))
    if not spread and len(line) <= WIDTH:
        return [line]
    return [head, *(one for name, child in value.items() for one in _lines(name, child, under(path, name), indent + 2))]


def _sources(entry: OutlineEntry) -> Sequence[Piece]:
    """What the entry of a `<<` names: one or a list of them."""
    return entry.value.items or [entry.value]


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class _Spot:
    """Where a value stands: its path, the key before it, the column of that key, and whether brackets are around."""

    path: str = ""
    key: Piece | None = None
    column: int = 0
    flow: bool = False


class _Rewriter:
    """Collects the edits of one text."""

    def __init__(self, text: str, root: Piece, file: str) -> None:
        self.text = text
        self.root = root
        self.file = file
        self.edits: list[_Edit] = []
        self._aliases = [piece for piece in root.walk() if isinstance(piece, Alias)]
        self._wanted: dict[Piece, tuple[Any, Any]] = {}  # of what has an anchor: what it reads as, what it is to read
        found = _BREAK.search(text)
        self._newline = found[0] if found else "\n"

    def result(self, current: Any, wanted: Any) -> str:
        """The text, changed from `current` to `wanted`."""
        self._value(self.root, current, wanted, _Spot())
        self._refuse_lost_anchors()
        parts, done = [], 0
        for edit in sorted(self.edits, key=lambda edit: edit[:2]):  # stable: what is inside comes before what is around
            parts += [self.text[done : edit.start], edit.text]
            done = max(done, edit.end)
        return "".join(parts) + self.text[done:]

    def _value(self, piece: Piece, current: Any, wanted: Any, spot: _Spot) -> None:
        if isinstance(piece, Alias):
            return self._alias(piece, wanted, spot)
        if piece.anchor is not None:
            self._wanted[piece] = (current, wanted)
        if piece.entries is not None and isinstance(wanted, dict):
            return self._mapping(piece, piece.entries, current, wanted, spot)
        if not _same(current, wanted):
            return self._replace(piece, wanted, spot)
        for item, value in zip(piece.items or (), current if piece.items else (), strict=True):
            self._value(item, value, value, _Spot(spot.path, None, item.column, flow=True))

    def _alias(self, alias: Alias, wanted: Any, spot: _Spot) -> None:
        """An alias follows what it names; wanted otherwise, it is written out."""
        before, after = self._wanted.get(alias.target, (_ABSENT, _ABSENT))  # absent: it stood in what is written anew
        if before is _ABSENT:
            raise self._also_elsewhere(alias)
        if _same(after, wanted):
            return
        if not _same(before, after):
            raise self._also_elsewhere(alias)
        self._replace(alias, wanted, spot)

    def _also_elsewhere(self, alias: Alias) -> UsageError:
        name, line = alias.target.anchor, alias.target.line
        return UsageError(
            f"{self.file}:{line}: the value &{name} is used at line {alias.line} too, where nothing is to change; "
            "write it out there first"
        )

    def _refuse_lost_anchors(self) -> None:
        """Raise where an alias would stand without its anchor."""
        for alias in self._aliases:
            lost = any(edit.start < alias.target.start < edit.end for edit in self.edits)
            if lost and not any(edit.start <= alias.start < edit.end for edit in self.edits):
                raise self._also_elsewhere(alias)

    def _mapping(
        self, piece: Piece, entries: Sequence[OutlineEntry], current: Any, wanted: dict[str, Any], spot: _Spot
    ) -> None:
        gone = [entry for entry in entries if entry.name is not None and entry.name not in wanted]
        retyped = "type" in current and "type" in wanted and current["type"] != wanted["type"]
        new = self._new_keys(piece, current, wanted)
        emptied = len(gone) == len(entries) and not new and gone
        if (gone and retyped and not is_section(spot.path)) or emptied or not self._removable(piece, gone, new):
            return self._replace(piece, wanted, spot)
        inner = [entry for entry in entries if entry not in gone]
        for entry in inner:
            here = _Spot(under(spot.path, entry.name or "<<"), entry.key, piece.column, piece.flow or spot.flow)
            self._entry(entry, current, wanted, here)
        for entry, key in zip(gone, new, strict=False):  # a key that goes gives its place to one that comes
            text = f"{inline(key)}: {inline(wanted[key])}"
            self.edits.append(_Edit(entry.key.start, self._end(entry.value), text))
        self._remove(piece.flow, entries, gone[len(new) :])
        kept = [entry for entry in entries if entry not in gone[len(new) :]]
        self._insert(piece, kept, {key: wanted[key] for key in new[len(gone) :]}, spot)

    def _entry(self, entry: OutlineEntry, current: Any, wanted: Mapping[str, Any], spot: _Spot) -> None:
        if entry.name is not None:
            return self._value(entry.value, current[entry.name], wanted[entry.name], spot)
        for piece in entry.value.walk():  # what << brings in is no value of this mapping's own
            if piece.anchor is not None:
                raise UsageError(f"{self.file}:{piece.line}: an anchor inside `<<`; write its keys out first")

    def _new_keys(self, piece: Piece, current: Any, wanted: Mapping[str, Any]) -> list[str]:
        """The keys to write: those that are missing, and those that `<<` brings in with another value."""
        own = {entry.name for entry in piece.entries or ()}
        others = [key for key in wanted if key not in own]
        return [key for key in others if key not in current or not self._brought(piece, key, current[key], wanted[key])]

    def _brought(self, piece: Piece, key: str, current: Any, wanted: Any) -> bool:
        """Whether `<<` brings in what is wanted under `key`; raises where that changes though it is not to."""
        for source in [one for entry in piece.entries or () if entry.name is None for one in _sources(entry)]:
            if not isinstance(source, Alias):
                continue
            before, after = self._wanted.get(source.target, (None, None))
            if not isinstance(before, dict) or key not in before:
                continue
            brought = after.get(key, _ABSENT) if isinstance(after, dict) else _ABSENT
            if brought is not _ABSENT and _same(brought, wanted):
                return True
            if brought is _ABSENT or not _same(brought, current):
                raise self._also_elsewhere(source)
            return False
        return _same(current, wanted)

    def _replace(self, piece: Piece, wanted: Any, spot: _Spot) -> None:
        """Write a value anew; a collection in brackets, unless its line would be too long."""
        followed = any(alias.target is piece for alias in self._aliases)
        text = (f"&{piece.anchor} " if followed else "") + inline(wanted)
        if spot.key is None:
            self.edits.append(_Edit(piece.start, self._end(piece), text))
            return
        start, gap = piece.start, self.text[spot.key.end : piece.start]
        wide = not (spot.flow or followed) and spot.column + len(spot.path.rpartition(".")[2]) + len(text) > WIDTH - 4
        if "#" not in gap and (piece.block or wide):
            start, text = spot.key.end, gap[: gap.index(":") + 1] + (self._spread(wanted, spot) if wide else f" {text}")
        elif piece.block and piece.column <= spot.column:
            text = f"  {text}"
        self.edits.append(_Edit(start, self._end(piece), text))

    def _spread(self, wanted: Any, spot: _Spot) -> str:
        """What follows the colon of a value in block style."""
        if not isinstance(wanted, dict) or not wanted:
            return f" {inline(wanted)}"
        indent = spot.column + 2
        lines = [line for key in wanted for line in _lines(key, wanted[key], under(spot.path, key), indent)]
        return self._newline + self._newline.join(lines)

    def _end(self, piece: Piece) -> int:
        """Where a piece ends, a last line break of its own left out."""
        return piece.start + len(self.text[piece.start : piece.end].rstrip())

    def _removable(self, piece: Piece, gone: Sequence[OutlineEntry], new: Sequence[str]) -> bool:
        """Whether entries can be taken out one by one: each stands on lines of its own, or in brackets."""
        starts = (entry.key.start for entry in gone[len(new) :])
        return piece.flow or all(not self.text[self._line_start(start) : start].strip() for start in starts)

    def _remove(self, flow: bool, entries: Sequence[OutlineEntry], gone: Sequence[OutlineEntry]) -> None:
        for index, entry in enumerate(entries):
            if entry in gone:
                self.edits.append(self._removal(entries, index, gone) if flow else self._line(entry))

    def _line(self, entry: OutlineEntry) -> _Edit:
        """An entry in block style goes with its lines, the comment after it too."""
        return _Edit(self._line_start(entry.key.start), self._next_line(entry.value), "")

    def _removal(self, entries: Sequence[OutlineEntry], index: int, gone: Sequence[OutlineEntry]) -> _Edit:
        """An entry in brackets goes with the comma that parts it from a neighbour that stays."""
        start, end = entries[index].key.start, entries[index].value.end
        if index and all(entry in gone for entry in entries[index:]):
            before = entries[index - 1].value.end
            # the comment of an entry that stays stays too, and a comma before it may
            commented = entries[index - 1] not in gone and "#" in self.text[before:start]
            return _Edit(start if commented else before, end, "")
        return _Edit(start, entries[index + 1].key.start if index + 1 < len(entries) else end, "")

    def _insert(self, piece: Piece, kept: Sequence[OutlineEntry], new: Mapping[str, Any], spot: _Spot) -> None:
        """Add keys at the end of a mapping, in its style."""
        if not new:
            return
        if piece.flow:
            place = kept[-1].value.end if kept else piece.inside
            pairs = ", ".join(f"{inline(key)}: {inline(value)}" for key, value in new.items())
            self.edits.append(_Edit(place, place, f", {pairs}" if kept else pairs))
            return
        lines = [line for key in new for line in _lines(key, new[key], under(spot.path, key), piece.column)]
        place = self._next_line(kept[-1].value)
        ended = place > 0 and _BREAK.match(self.text[place - 1]) is not None
        text = self._newline.join(lines)
        self.edits.append(_Edit(place, place, text + self._newline if ended else self._newline + text))

    def _line_start(self, index: int) -> int:
        return max((found.end() for found in _BREAK.finditer(self.text, 0, index)), default=0)

    def _next_line(self, piece: Piece) -> int:
        """Where the line after a piece begins, or the end of the text."""
        if _BREAK.match(self.text[piece.end - 1]):  # a block of text has taken its line break with it
            return piece.end
        found = _BREAK.search(self.text, piece.end)
        return found.end() if found else len(self.text)
