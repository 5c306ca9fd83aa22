"""Patterns: the kind of each layer (rules R1 and R2 of the language), parsed and formatted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Any

from tfkit.core.bounds import LAYERS
from tfkit.core.output import some
from tfkit.core.synonyms import nearest
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, shorten

MAX_LAYERS = LAYERS.most
ITEM = re.compile(r"(?P<kinds>\w+(\+\w+)*)(\*(?P<count>\d+))?")


@dataclass(frozen=True)
class PatternEntry:
    """Entry of a pattern: the kinds merged over `layer`, the number of repetitions, and its index in the text."""

    kinds: tuple[str, ...]
    count: int
    number: int


def combinations(entries: Sequence[PatternEntry]) -> list[tuple[str, ...]]:
    """Return the distinct combinations of kinds in order of appearance."""
    return list(dict.fromkeys(entry.kinds for entry in entries))


def expand(pattern: Node | None, num_layers: int | None, kinds: Sequence[str], faults: Faults) -> list[PatternEntry]:
    """Return the entry of each layer in order (each with count 1); empty on faults."""
    if pattern is None or pattern.value is None:
        return [PatternEntry((), 1, 0)] * (num_layers or 0)
    if not isinstance(pattern.value, list) or not pattern.value:
        faults.add(pattern, "a pattern is a list of kinds, such as [local*5, global]")
        return []
    inner = [index for index, node in enumerate(pattern.value) if isinstance(node.value, list)]
    if len(inner) > 1:
        faults.add(pattern.value[inner[1]], "a pattern has at most one inner list, the part that repeats")
        return []
    numbers = count()
    parsed = [
        [
            _entry(item, next(numbers), kinds, faults)
            for item in (node.value if isinstance(node.value, list) else [node])
        ]
        for node in pattern.value
    ]
    groups = [[entry for entry in group if entry is not None] for group in parsed]
    if any(entry is None for group in parsed for entry in group):
        return []
    if any(not group for group in groups):
        faults.add(pattern.value[inner[0]], "an inner list names the kinds that repeat, such as [local*5, global]")
        return []
    once = sum(entry.count for group in groups for entry in group)
    if once > MAX_LAYERS:
        faults.add(pattern, f"the pattern taken once has {once:,} layers; a stack has at most {MAX_LAYERS:,}")
        return []
    before = _flat(groups[: inner[0]] if inner else [])
    cycle = _flat([groups[inner[0]]] if inner else groups)
    after = _flat(groups[inner[0] + 1 :] if inner else [])
    return _fill(pattern, before, cycle, after, num_layers, bool(inner), faults)


def shortest(kinds: Sequence[str], once: int = 0) -> list[Any]:
    """Return the shortest pattern for the layers `kinds`, of which the first `once` precede the repeated part."""
    before, cycle = _counted(kinds[:once]), _counted(_cycle(kinds[once:]))
    return [*before, cycle] if before and cycle else _counted(_cycle(kinds))


def _cycle(kinds: Sequence[str]) -> Sequence[str]:
    """Return the shortest prefix that repeats to the kinds."""
    total = len(kinds)
    period = next((n for n in range(1, total) if all(kinds[i] == kinds[i % n] for i in range(total))), total)
    return kinds[:period]


def _counted(kinds: Sequence[str]) -> list[str]:
    """Run-length encode the kinds."""
    found = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return [kind if times == 1 else f"{kind}*{times}" for kind, times in found]


def _fill(
    pattern: Node,
    before: list[PatternEntry],
    cycle: list[PatternEntry],
    after: list[PatternEntry],
    num_layers: int | None,
    inner: bool,
    faults: Faults,
) -> list[PatternEntry]:
    if num_layers is None:
        if inner:
            faults.add(pattern, "an inner list repeats to fill num_layers; say num_layers")
            return []
        return cycle
    room = num_layers - len(before) - len(after)
    if room < len(cycle):
        once = len(before) + len(cycle) + len(after)
        faults.add(pattern, f"the pattern taken once has {once:,} layers, num_layers is {num_layers:,}")
        return []
    turns = -(-room // len(cycle))
    return before + (cycle * turns)[:room] + after


def _entry(node: Node, number: int, kinds: Sequence[str], faults: Faults) -> PatternEntry | None:
    match = ITEM.fullmatch(node.value) if isinstance(node.value, str) else None
    if match is None:
        faults.add(node, "an entry of a pattern is a kind, such as local, local*3 or global+first")
        return None
    names, times = tuple(match["kinds"].split("+")), int(match["count"] or 1)
    for name in names:
        if name not in kinds:
            faults.add(
                node,
                f"unknown kind '{shorten(name)}'; `layers:` names {(some(kinds, 20) or 'no kinds')}",
                nearest(name, list(kinds)),
            )
            return None
    if not 1 <= times <= MAX_LAYERS:
        faults.add(node, f"a kind is repeated 1 to {MAX_LAYERS:,} times, got {times}")
        return None
    return PatternEntry(names, times, number)


def _flat(groups: list[list[PatternEntry]]) -> list[PatternEntry]:
    return [replace(entry, count=1) for group in groups for entry in group for _ in range(entry.count)]
