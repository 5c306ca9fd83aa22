"""Output of `tfkit explain`: values of recipe keys, their origins, and the values they replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import NamedTuple

from rich.console import Console

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import Fault, Place, UsageError
from tfkit.recipe.load import Recipe
from tfkit.recipe.text.node import inline
from tfkit.recipe.views.row import Notes, Origin, RecipeRow, joined, label
from tfkit.recipe.views.table import RecipeTable
from tfkit.reports.parts_table import rows as print_rows
from tfkit.reports.table import say

AS_WRITTEN = "shown as written, because no layer or stack has this key after resolving"


class Answer(NamedTuple):
    """A key with its values, which are several if stacks or layers differ."""

    path: str
    sentence: str
    entries: list[RecipeRow]


class Explanation(NamedTuple):
    """The answer for a key: `whole` describes the part or section itself, `answers` its options."""

    key: str
    made_of: list[str]  # the kinds that the requested layers consist of
    whole: list[Answer]
    answers: list[Answer]
    note: str


def explain(recipe: Recipe, key: str, notes: Notes | None = None) -> Explanation:
    """Look up the dotted `key` in `recipe` with its origins. Raise UsageError for invalid keys."""
    rows = recipe.table(notes=notes).find(key)
    groups = [list(group) for _, group in groupby(rows, lambda row: row.path)]
    nested = [group for group in groups if any(row.children() for row in group)]
    whole = [answer for group in nested for answer in _whole(group)]
    made_of = []
    for row in rows:
        if row.layers and ".layers." in f"{row.path}.":
            kinds = f" with the kind{'s' * (len(row.kinds) > 1)} {'+'.join(row.kinds)}" if row.kinds else ""
            made_of.append(f"{row.side} {label(row.layers)}: `layer`{kinds}")
    note, kind = "", recipe.blueprint().type.part
    if not rows[-1].is_resolved:
        note = AS_WRITTEN
    elif rows[-1].path.endswith(".mask") and any(row.layers and row.side and kind.sides[row.side] for row in rows):
        note = f"in addition to causal, which follows from type: {kind.part_name}"
    return Explanation(key, made_of, whole, list(_answers(rows)), note)


def answers(table: RecipeTable, key: str) -> list[Answer]:
    """Return the plain values at and below `key`, or [] if the recipe does not have the key."""
    try:
        return list(_answers(table.find(key)))
    except UsageError:
        return []


def resets(recipe: Recipe) -> Iterator[Fault]:
    """Yield a warning for each option that a variant sets back to its default by changing the type of its part."""
    for _, node in recipe.root.walk():
        kind, old = node.get("type"), next(iter(node.dropped), None)
        if kind is None or old is None or not kind.place.via.startswith("variant ") or kind.under != old:
            continue
        change = f"{kind.place.via} changes the type from {old.value} to {kind.value}, which resets"
        for lost in node.dropped[1:]:
            if lost.path == old.path:  # the following are lost by an earlier change
                break
            entries = [entry for answer in answers(recipe.table(), lost.path) for entry in answer.entries]
            now = [inline(entry.plain()) for entry in entries if entry.node is None and entry.plain() != lost.plain()]
            if now:
                key, was = lost.path.rpartition(".")[2], inline(lost.plain())
                text = f"{change} {key} from {was} to {now[0]}; to keep it, write {key}: {was} in the variant"
                yield Fault(kind.place, node.path, text)


def _whole(rows: list[RecipeRow]) -> Iterator[Answer]:
    """Yield the changes of a part or section as a whole, if any; its options are listed separately."""
    answer = _answer(rows, rows)
    happened = [entry for entry in answer.entries if entry.dropped or entry.replaced]
    texts = {tuple(_happened(entry)) for entry in happened}
    if len(texts) == 1 and len(happened) == len(answer.entries):  # the same for all layers
        happened = [replace(happened[0], where="")]
    if happened:
        yield answer._replace(entries=happened)


def _answers(rows: Sequence[RecipeRow]) -> Iterator[Answer]:
    """Yield an answer for each plain value at and below the rows, in recipe order."""
    for _, same in groupby(rows, lambda row: row.path):
        group, keys = list(same), dict[str, list[RecipeRow]]()
        for leaf in (leaf for row in group for leaf in row.leaves()):
            keys.setdefault(leaf.path, []).append(leaf)
        yield from (_answer(leaves, group) for leaves in keys.values())


def _answer(leaves: list[RecipeRow], rows: list[RecipeRow]) -> Answer:
    """Group the rows of a key by value and origin; `rows` includes those that lack the key."""
    groups: dict[tuple[str, str], list[RecipeRow]] = {}
    for row in leaves:
        groups.setdefault((inline(row.plain()), row.origin.short()), []).append(row)
    everywhere = len(groups) == 1 and len(leaves) == len(rows)
    found = [replace(holds[0], where="" if everywhere else _where(holds, rows)) for holds in groups.values()]
    return Answer(leaves[0].path, leaves[0].sentence, found)


def _where(holds: list[RecipeRow], rows: list[RecipeRow]) -> str:
    """Name the stacks and layers that have a value, such as `decoder layers 0-4, 6-10`."""
    paired = len({row.side for row in rows}) > 1
    words = []
    for side in dict.fromkeys(row.side for row in holds):
        held = [row.layers for row in holds if row.side == side]
        runs = joined(run for layers in held for run in layers or ())
        # omit layer numbers if all layers have the value
        rest = any(row.side == side and row.layers not in held for row in rows)
        numbers = label(runs) if runs and (rest or not paired) else ""
        words.append(f"{side if paired else ''} {numbers}".strip())
    return "; ".join(words)


def as_data(explanation: Explanation) -> JsonObject:
    """Return the content of `render` as data."""
    whole, answers = ([_answer_data(answer) for answer in some] for some in (explanation.whole, explanation.answers))
    note = explanation.note or None
    return {"key": explanation.key, "layers": explanation.made_of, "whole": whole, "answers": answers, "note": note}


def _answer_data(answer: Answer) -> dict[str, object]:
    entries = [
        {
            "value": entry.plain(),
            "where": entry.where or None,
            "origin": _origin_data(entry.origin),
            "replaced": [{"value": value, "origin": _origin_data(found)} for value, found in entry.replaced],
            "dropped": [{"key": node.path, "value": node.plain(), **asdict(node.place)} for node in entry.dropped],
        }
        for entry in answer.entries
    ]
    return {"key": answer.path, "meaning": answer.sentence, "said": entries}


def _origin_data(found: Origin) -> dict[str, object]:
    place = found.place or Place("")
    return {
        "by": found.by,
        "words": found.words(),
        "file": place.file or None,
        "line": place.line or None,
        "column": place.column or None,
        "via": place.via or None,
        "kind": found.kind or None,
        "follows_from": found.source or ("model" if found.inherited else None),
    }


def render(explanation: Explanation, console: Console) -> None:
    """Print a single value in detail, or several values as a table for each part or section."""
    for text in explanation.made_of:
        say(console, text)
    if len(explanation.answers) == 1:
        _at_length(explanation.answers[0], console)
    else:
        groups = groupby(explanation.answers, lambda answer: answer.path.rpartition(".")[0])
        for number, (parent, group) in enumerate(groups):
            if number:
                console.print()
            if parent:
                say(console, parent, style="bold")
            _table(list(group), console)
    for answer in explanation.whole:
        for entry in answer.entries:
            where = f" in {entry.where}" if entry.where else ""
            for text in _happened(entry):
                say(console, f"{answer.path}{where}: {text}")
    if explanation.note:
        say(console, explanation.note)


def _at_length(answer: Answer, console: Console) -> None:
    for entry in answer.entries:
        where = f" ({entry.where})" if entry.where else ""
        say(console, f"{answer.path}{where}: {inline(entry.plain())}")
        for text in (entry.origin.words(), *_happened(entry)):
            say(console, text, 2)
    if answer.sentence and all(entry.origin.by != "default" for entry in answer.entries):
        say(console, f"meaning: {answer.sentence}", 2)


def _table(answers: Sequence[Answer], console: Console) -> None:
    """Print a row for each value: its key, its scope if there are several, and its origin."""
    cells = []
    for answer in answers:
        for entry in answer.entries:
            before = "".join(f", before: {inline(value)}" for value, _ in entry.replaced[:1])
            key, set_by = answer.path.rpartition(".")[2], entry.origin.short() + before
            cells.append((key, entry.where, inline(entry.plain()), set_by))
    shown = (0, 1, 2, 3) if any(row[1] for row in cells) else (0, 2, 3)
    rows = [[row[column] for column in shown] for row in cells]
    print_rows(console, rows, [("key", "where", "value", "set by")[column] for column in shown])


def _happened(entry: RecipeRow) -> Iterator[str]:
    """Yield the replaced values, then the options that were dropped because the type changed."""
    for value, found in entry.replaced:
        yield f"replaced {inline(value)}: {found.words()}"
    old = ""
    for node in entry.dropped:
        if node.path.endswith(".type"):
            old = inline(node.plain())
            continue
        yield f"dropped with the type {old}: {node.path.rpartition('.')[2]} {inline(node.plain())} ({node.place})"
