"""Text of users in files: one escape for each format (CSV, Markdown, HTML), which every writer of reports uses."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tfkit.core.extras import optional
from tfkit.core.output import printable

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # a spreadsheet computes a cell that starts with one
# Markdown that acts inside a line: tags and entities, code, emphasis, formulas, strikethrough, links, cells
_INLINE = (
    (re.compile(r"\\(?=[!-/:-@\[-`{-~])"), r"\\\\"),
    (re.compile(r"&(?=#?\w+;)"), "&amp;"),
    (re.compile(r"<(?=[A-Za-z/!?])"), "&lt;"),
    (re.compile(r"([`*$~|]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:]))"), r"\\\1"),
)
# and at its start: headings, quotes, lists, rules
_START = re.compile(r"(#{1,6}(?=\s|$)|>|[-+](?=\s|$)|[-=]+$)")
_NUMBERED = re.compile(r"(\d{1,9})([.)])(?=\s|$)")


def csv_text(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV table. Numbers stay numbers; text that a spreadsheet would compute gets an apostrophe in front."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in heads])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """The value of a cell: numbers and None as they are, anything else as harmless text."""
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
    """`text` as one line of Markdown that shows it as it is: no tag, link, formula, list or heading."""
    line = printable(" ".join(text.split()))
    for found, instead in _INLINE:
        line = found.sub(instead, line)
    return _NUMBERED.sub(r"\1\\\2", line, count=1) if _NUMBERED.match(line) else _escaped_start(line)


def _escaped_start(line: str) -> str:
    return f"\\{line}" if _START.match(line) else line


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a table of Markdown; the cells are Markdown themselves."""
    return f"| {' | '.join(cells)} |"


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table in Markdown, whose cells are plain text."""
    yield markdown_row(map(markdown, heads))
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield markdown_row(map(markdown, row))


def html_page(template: Path, **values: object) -> str:
    """A page of HTML from a template: all text in it is escaped. Raises UsageError where jinja2 is missing."""
    jinja2 = optional("jinja2", "study", "the page needs")
    environment = jinja2.Environment(autoescape=True, finalize=_shown)
    page: str = environment.from_string(template.read_text(encoding="utf-8")).render(**values)
    return page


def _shown(value: object) -> object:
    """A value on its way into a page: control characters of text are spelled out, markup of our own stays."""
    return printable(value.replace("\r\n", "\n")) if type(value) is str else value
