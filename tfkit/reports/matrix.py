"""Compatibility tables of parts, for every pair of slots with rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from tfkit.core.trees import JsonObject
from tfkit.recipe.rules import PAIRS, SECTION_PAIRS, pairs
from tfkit.reports.parts_table import INDENT, rows, say

WORKS = "yes"


def matrix_data(slot: str, other: str) -> JsonObject:
    """Check all parts of `slot` against all parts of `other`: None if they can be combined, else the reason."""
    refused: dict[str, dict[str, str | None]] = {}
    for name, other_name, reason in pairs(slot, other, brief=(slot, other) in SECTION_PAIRS):
        refused.setdefault(name, {})[other_name] = reason
    return {"slot": slot, "other": other, "refused": refused}


def all_data() -> list[JsonObject]:
    """Return the tables of all pairs of slots that interact in a layer or a recipe."""
    return [matrix_data(slot, other) for slot, other in (*PAIRS, *SECTION_PAIRS)]


def render_matrices(tables: Sequence[JsonObject], console: Console) -> None:
    """Print each table: a mark if two parts can be combined, else the number of a footnote with the reason."""
    notes: dict[str, int] = {}

    def mark(reason: str | None) -> str:
        return WORKS if reason is None else str(notes.setdefault(reason, len(notes) + 1))

    for table in tables:
        say(console, f"{table['slot']} and {table['other']}", "bold")
        heads = list(dict.fromkeys(name for row in table["refused"].values() for name in row))
        names = max(map(len, table["refused"]))
        for fitting in _fitting(heads, console.width - names - INDENT):
            cells = [(name, *(mark(row[head]) for head in fitting)) for name, row in table["refused"].items()]
            rows(console, cells, ("", *fitting))
            console.print()
    for reason, number in notes.items():
        say(console, f"{number}: {reason}")
    say(console, f"{WORKS}: can be combined" + "; a number: cannot be combined, see above" * bool(notes))


def _fitting(heads: Sequence[str], width: int) -> Iterator[list[str]]:
    """Split the columns into groups that fit `width`."""
    group: list[str] = []
    for head in heads:
        if group and sum(len(one) + 2 for one in (*group, head)) > width:
            yield group
            group = []
        group.append(head)
    yield group
