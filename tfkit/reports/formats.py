"""Escaping of user text in files, with one function per format (CSV, Markdown, LaTeX, HTML); all reports use it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tfkit.core.errors import optional
from tfkit.core.output import printable

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # spreadsheets evaluate cells that start with one of these characters
# inline Markdown: tags and entities, code, emphasis, formulas, strikethrough, links, table cells
_INLINE = (
    (re.compile(r"\\(?=[!-/:-@\[-`{-~])"), r"\\\\"),
    (re.compile(r"&(?=#?\w+;)"), "&amp;"),
    (re.compile(r"<(?=[A-Za-z/!?])"), "&lt;"),
    (re.compile(r"([`*$~|]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:]))"), r"\\\1"),
)
# Markdown at the start of a line: headings, quotes, lists, rules
_START = re.compile(r"(#{1,6}(?=\s|$)|>|[-+](?=\s|$)|[-=]+$)")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {character: f"\\{character}" for character in "#$%&_{}"}
_NUMBERED = re.compile(r"(\d{1,9})([.)])(?=\s|$)")


def csv_text(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Format a CSV table. Numbers stay numbers; text that looks like a formula is prefixed with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in heads])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """Convert a cell: numbers and None stay unchanged, other values become escaped text."""
    if value is None or isinstance(value, (int, float)):
        return value
    text = str(value)
    return ("'" if text.startswith(_FORMULA) and not _is_number(text) else "") + printable(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def markdown(text: str) -> str:
    """Escape `text` as one line of Markdown without active tags, links, formulas, lists or headings."""
    line = printable(" ".join(text.split()))
    for pattern, replacement in _INLINE:
        line = pattern.sub(replacement, line)
    if _START.match(line):
        return f"\\{line}"
    return _NUMBERED.sub(r"\1\\\2", line, count=1) if _NUMBERED.match(line) else line


def markdown_row(cells: Iterable[str]) -> str:
    """Format a row of a Markdown table from cells that are Markdown."""
    return f"| {' | '.join(cells)} |"


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table from cells of plain text."""
    yield markdown_row(map(markdown, heads))
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield markdown_row(map(markdown, row))


def latex(text: str) -> str:
    """Escape `text` as one line of LaTeX without active commands, comments or formulas."""
    return "".join(_LATEX.get(character, character) for character in printable(" ".join(text.split())))


def html_page(template: Path, **values: object) -> str:
    """Render an HTML template, escaping all text. Raise UsageError if jinja2 is missing."""
    jinja2 = optional("jinja2", "study", "the page requires")
    environment = jinja2.Environment(autoescape=True, finalize=_shown)
    page: str = environment.from_string(template.read_text(encoding="utf-8")).render(**values)
    return page


def _shown(value: object) -> object:
    """Escape control characters in plain text; trusted markup stays unchanged."""
    return printable(value.replace("\r\n", "\n")) if type(value) is str else value
