"""Output of `tfkit parts` and `recipes` for any terminal width; long text is wrapped, never truncated."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfkit.core.bounds import JsonObject
from tfkit.core.inputs import CAPABILITIES
from tfkit.recipe.rules import PAIRS, SECTION_PAIRS, pairs
from tfkit.recipe.text.node import inline

INDENT = 2
LONG = 36  # words longer than this, such as paths, may be broken
GAP = 2  # spaces between table columns
TABLE_WIDTH = 72  # narrower terminals get a list instead of a table
NO_DOC = "no description: the class has no docstring"


def render_slots(slots: Sequence[JsonObject], console: Console) -> None:
    """Print all slots, one line per part."""
    for number, slot in enumerate(slots):
        if number:
            console.print()
        say(console, f"{slot['slot']}: {slot['purpose']}", "bold")
        _lines(console, slot["parts"])


def render_slot(slot: JsonObject, console: Console) -> None:
    """Print one slot: purpose, recipe syntax and parts."""
    say(console, f"{slot['slot']}: {slot['purpose']}", "bold")
    say(console, f"in a recipe: {slot['written']}")
    console.print()
    _lines(console, slot["parts"])


def render_part(part: JsonObject, console: Console) -> None:
    """Print one part."""
    say(console, f"{part['slot']} {part['name']}", "bold")
    _doc(console, part["doc"] or NO_DOC)
    console.print()
    say(console, f"file: {part['file'] or 'none'}", "dim")
    console.print()
    _options(console, part)
    _abilities(console, part)
    console.print()
    if part["recipe"] is None:
        say(console, f"no minimal recipe: {part['recipe_problem']}")
        return
    say(console, "minimal recipe:", "bold")
    exact(console, part["recipe"])


def _lines(console: Console, parts: Sequence[JsonObject]) -> None:
    """Print one line per part: name, summary and paper, or the file of a custom part."""
    if not parts:
        return say(console, "no part is registered", indent=INDENT)
    cells = []
    for part in parts:
        text = Text(part["what"] or NO_DOC)
        if part["paper"]:
            text.append(f" ({part['paper']})", "dim")
        if part["own"]:
            text.append(f" [custom: {part['file'] or 'no file'}]", "cyan")
        cells.append((part["name"], text))
    rows(console, cells)


def _doc(console: Console, doc: str) -> None:
    """Print a docstring: paragraphs are wrapped, lists and diagrams (with repeated spaces) are kept verbatim."""
    for number, paragraph in enumerate(doc.split("\n\n")):
        if number:
            console.print()
        lines = paragraph.splitlines()
        if any("  " in line.strip() or line.lstrip().startswith(("- ", "* ", "|")) for line in lines):
            for line in lines:
                exact(console, line)
        else:
            say(console, " ".join(lines))


def _options(console: Console, part: JsonObject) -> None:
    names = [field["name"] for field in part["fields"]]
    if not names:
        return say(console, "This part has no options.")
    cells = []
    for field in part["fields"]:
        nested = isinstance(field["default"], dict) and any(name.startswith(f"{field['name']}.") for name in names)
        default = "required" if field["required"] else "as below" if nested else inline(field["default"])
        cells.append((field["name"], field["type"], default, field["meaning"]))
    rows(console, cells, ("option", "value", "default", "meaning"))
    if part["checked"]:
        say(console, f"validated against each other or the model: {', '.join(part['checked'])}")


def _abilities(console: Console, part: JsonObject) -> None:
    """Print the capabilities of a part, and its requirements on other parts."""
    for verdict, title in ((True, "It can:"), (False, "It cannot:")):
        names = [name for name, declared in part["capabilities"].items() if declared is verdict]
        if names:
            console.print()
            say(console, title, "bold")
            rows(console, [(name, CAPABILITIES[name]) for name in names])
    if part["asks"]:
        console.print()
        say(console, "Required of other parts in its layer:", "bold")
        rows(console, [(" and ".join(slots), CAPABILITIES[name]) for name, slots in part["asks"].items()])
    if part["needs"]:
        console.print()
        say(console, f"Every call of the model must pass: {', '.join(part['needs'])}")


def rows(console: Console, cells: Sequence[Sequence[str | Text]], heads: Sequence[str] = ()) -> None:
    """Print a table without borders, or, if it does not fit, the cells of each row below the first one."""
    lines = [*([heads] if heads else []), *cells]
    widths = _widths([list(map(str, column)) for column in zip(*lines, strict=True)], console.width - INDENT)
    if widths is None or console.width < TABLE_WIDTH:
        for row in cells:
            _stack(console, row, heads)
        return
    table = Table(box=None, show_header=bool(heads), pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for head, width in zip(heads or [""] * len(widths), widths, strict=True):
        table.add_column(head, width=width, overflow="fold")
    for row in cells:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    with console.capture() as printed:
        console.print(Padding(table, (0, 0, 0, INDENT)))
    for line in printed.get().splitlines():  # strip rich's padding
        console.print(Text.from_ansi(line.rstrip()), soft_wrap=True)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Shrink the widest columns so that they fit `room`. Return None if a word would have to be broken."""
    words = [[cell_len(word) for cell in column for word in cell.split()] for column in columns]
    least = [min(max(lengths, default=0), LONG) for lengths in words]
    widths = [max(map(cell_len, column)) for column in columns]
    room -= GAP * (len(columns) - 1)
    while sum(widths) > room:
        wrapped = [index for index, width in enumerate(widths) if width > least[index]]
        if not wrapped:
            return None
        widths[max(wrapped, key=widths.__getitem__)] -= 1
    return widths


def _stack(console: Console, row: Sequence[str | Text], heads: Sequence[str]) -> None:
    """Print a row as its name, followed by its other cells on labelled lines."""
    say(console, str(row[0]), "bold", INDENT)
    for column, cell in enumerate(row[1:], start=1):
        label = f"{heads[column]}: " if heads else ""
        if str(cell):
            say(console, label + str(cell), indent=2 * INDENT)


def say(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """Print text wrapped between words; only overlong words are broken."""
    margin = " " * indent
    wrapped = textwrap.fill(
        text, max(console.width, 20), initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    exact(console, wrapped, style)


def exact(console: Console, text: str, style: str = "") -> None:
    """Print text verbatim; the terminal wraps long lines."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


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


FOLDERS = {
    "models": "architectures to show, build and start from (tfkit show NAME)",
    "tasks": "models with data and an objective (tfkit train NAME)",
    "studies": "variants compared over seeds (tfkit study NAME)",
}


class RecipeLine(NamedTuple):
    """A recipe: its folder, name and description."""

    folder: str
    name: str
    about: str


def listed(recipes: Mapping[str, Path], word: str = "") -> Iterator[RecipeLine]:
    """Yield the recipes that have `word` in their name or leading comments, ignoring case."""
    for name, path in recipes.items():
        lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        comments = [line.removeprefix("#").strip() for line in lines]
        if word.casefold() in " ".join([name, *comments]).casefold():
            yield RecipeLine(path.parent.name, name, comments[0] if comments else "")


def render(lines: list[RecipeLine], console: Console) -> None:
    """Print one table per folder."""
    for number, (folder, group) in enumerate(groupby(lines, lambda line: line.folder)):
        if number:
            console.print()
        say(console, f"{folder}: {FOLDERS[folder]}", "bold")
        rows(console, [(line.name, line.about) for line in group])
