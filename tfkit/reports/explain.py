"""Origins and replaced values of recipe keys: the answers of `tfkit explain`, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from rich.console import Console

from tfkit.core.errors import Place, UsageError
from tfkit.recipe.load import Recipe
from tfkit.recipe.text.node import Node, inline
from tfkit.recipe.views.origin import Notes, Origin, Value, history, origin
from tfkit.reports.parts_table import rows
from tfkit.reports.runs import Runs, joined, label
from tfkit.reports.views import Found, KeyFinder, View
from tfkit.reports.wrapped import say


@dataclass(frozen=True)
class SetValue:
    """One value of a key: its origin, the values it replaced (latest first), and its scope.

    `where` is empty if the value applies everywhere; `dropped` are the options removed by a change of type.
    """

    value: Any
    origin: Origin
    replaced: tuple[tuple[Any, Origin], ...] = ()
    where: str = ""
    dropped: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Answer:
    """One key with its values, several if stacks or layers differ."""

    path: str
    sentence: str
    entries: tuple[SetValue, ...]


@dataclass
class Explanation:
    """The answer for one key: `whole` for the part or section itself, `answers` for its options."""

    key: str
    answers: list[Answer]
    whole: list[Answer] = field(default_factory=list)
    made_of: list[str] = field(default_factory=list)  # kinds of the requested layers
    note: str = ""


def explain(recipe: Recipe, key: str, notes: Notes | None = None) -> Explanation:
    """Look up the dotted `key` in `recipe` with its origins; raises UsageError for invalid keys."""
    found = KeyFinder(recipe).find(key)
    explanation = Explanation(key, [answer for one in found for answer in _answers(one, notes or {})])
    for one in found:
        if any(view.value.children() for view in one.views):
            explanation.whole += _whole(one, notes or {})
        if ".layers." in f"{one.path}.":
            explanation.made_of += [text for view in one.views if (text := _made_of(view))]
        explanation.note = one.note or explanation.note
        if one.path.endswith(".mask") and any(view.causal for view in one.views):
            explanation.note = f"besides causal, which comes with type: {recipe.blueprint().type.part.part_name}"
    return explanation


class KeyAnswers:
    """Answers for many keys of one recipe."""

    def __init__(self, recipe: Recipe, notes: Notes | None = None) -> None:
        self._finder = KeyFinder(recipe)
        self._notes = notes or {}

    def of(self, key: str) -> list[Answer]:
        """Return the plain values at and below `key`; empty if the recipe has no such key."""
        try:
            found = self._finder.find(key)
        except UsageError:
            return []
        return [answer for one in found for answer in _answers(one, self._notes)]


def _whole(found: Found, notes: Notes) -> Iterator[Answer]:
    """Yield the changes of a part or section itself, if any; options are listed separately."""
    answer = _answer(found.path, [(view, view.value) for view in found.views], found.views, notes)
    happened = [entry for entry in answer.entries if entry.dropped or entry.replaced]
    texts = {tuple(_happened(entry)) for entry in happened}
    if len(texts) == 1 and len(happened) == len(answer.entries):  # same everywhere, even if options differ
        happened = [replace(happened[0], where="")]
    if happened:
        yield replace(answer, entries=tuple(happened))


def _answers(found: Found, notes: Notes) -> Iterator[Answer]:
    """Yield an answer for each plain value at and below the key, in recipe order."""
    keys: dict[str, list[tuple[View, Value]]] = {}
    for view in found.views:
        for leaf in view.value.leaves():
            keys.setdefault(leaf.path.removeprefix(view.value.path), []).append((view, leaf))
    for tail, leaves in keys.items():
        yield _answer(found.path + tail, leaves, found.views, notes)


def _answer(path: str, leaves: list[tuple[View, Value]], views: list[View], notes: Notes) -> Answer:
    groups: dict[tuple[str, str], tuple[SetValue, list[View]]] = {}
    for view, value in leaves:
        asked = replace(value, path=path)
        entry = SetValue(value.plain(), origin(asked, notes), tuple(history(asked, notes)), dropped=_dropped(value))
        groups.setdefault((inline(entry.value), entry.origin.short()), (entry, []))[1].append(view)
    everywhere = len(groups) == 1 and len(leaves) == len(views)
    found = [entry if everywhere else replace(entry, where=_where(holds, views)) for entry, holds in groups.values()]
    return Answer(path, leaves[0][1].sentence, tuple(found))


def _dropped(value: Value) -> tuple[Node, ...]:
    return () if value.node is None else value.node.dropped


def _where(holds: list[View], views: list[View]) -> str:
    """Return the stacks and layers with a value: `decoder layers 0-4, 6-10`."""
    paired = len({view.side for view in views}) > 1
    words = []
    for side in dict.fromkeys(view.side for view in holds):
        runs: Runs = joined(run for view in holds if view.side == side for run in view.layers or ())
        # layers are omitted if all are meant
        rest = [view for view in views if view.side == side and view not in holds]
        numbers = label(runs) if runs and (rest or not paired) else ""
        words.append(" ".join(word for word in (f"{side}" if paired else "", numbers) if word))
    return "; ".join(words)


def _made_of(view: View) -> str:
    if view.layers is None:
        return ""
    kinds = " with the kinds " * (len(view.kinds) > 1) or " with the kind " * bool(view.kinds)
    return f"{view.side} {label(view.layers)}: `layer`{kinds}{'+'.join(view.kinds)}"


# as data


def as_data(explanation: Explanation) -> dict[str, Any]:
    """Return the content of `render` as data."""
    return {
        "key": explanation.key,
        "layers": explanation.made_of,
        "whole": [_answer_data(answer) for answer in explanation.whole],
        "answers": [_answer_data(answer) for answer in explanation.answers],
        "note": explanation.note or None,
    }


def _answer_data(answer: Answer) -> dict[str, Any]:
    entries = [_entry_data(entry) for entry in answer.entries]
    return {"key": answer.path, "meaning": answer.sentence, "said": entries}


def _entry_data(entry: SetValue) -> dict[str, Any]:
    return {
        "value": entry.value,
        "where": entry.where or None,
        "origin": _origin_data(entry.origin),
        "replaced": [{"value": value, "origin": _origin_data(found)} for value, found in entry.replaced],
        "dropped": [{"key": node.path, "value": node.plain(), **asdict(node.place)} for node in entry.dropped],
    }


def _origin_data(found: Origin) -> dict[str, Any]:
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


# as text


def render(explanation: Explanation, console: Console) -> None:
    """Print one value in detail, or many as a table."""
    for text in explanation.made_of:
        say(console, text)
    if len(explanation.answers) == 1:
        _at_length(explanation.answers[0], console)
    else:
        _tables(explanation.answers, console)
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
        say(console, f"{answer.path}{where}: {inline(entry.value)}")
        say(console, entry.origin.words(), 2)
        for text in _happened(entry):
            say(console, text, 2)
    if answer.sentence and all(entry.origin.by != "default" for entry in answer.entries):
        say(console, f"meaning: {answer.sentence}", 2)


def _tables(answers: Sequence[Answer], console: Console) -> None:
    """Print a table for each part or section, one row per value, with its scope and origin."""
    for number, (parent, group) in enumerate(groupby(answers, lambda answer: answer.path.rpartition(".")[0])):
        if number:
            console.print()
        if parent:
            say(console, parent, style="bold")
        _table(list(group), console)


def _table(answers: Sequence[Answer], console: Console) -> None:
    cells = []
    for answer in answers:
        for entry in answer.entries:
            before = "".join(f", before: {inline(value)}" for value, _ in entry.replaced[:1])
            cells.append(
                (answer.path.rpartition(".")[2], entry.where, inline(entry.value), entry.origin.short() + before)
            )
    heads = ("key", "where", "value", "set by")
    shown = [column for column in range(len(heads)) if column != 1 or any(row[1] for row in cells)]
    rows(console, [[row[column] for column in shown] for row in cells], [heads[column] for column in shown])


def _happened(entry: SetValue) -> Iterator[str]:
    """Yield the replaced values, then the options dropped with a type; the type leads its group."""
    for value, found in entry.replaced:
        yield f"replaced {inline(value)}: {found.words()}"
    old = ""
    for node in entry.dropped:
        if node.path.endswith(".type"):
            old = inline(node.plain())
            continue
        yield f"dropped with the type {old}: {node.path.rpartition('.')[2]} {inline(node.plain())} ({node.place})"
