"""HTML pages that open offline and print: sections of text, pictures, tables and code, also as Markdown and as data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfkit.reports.formats import html_page, markdown, markdown_table

PAGE = Path(__file__).with_name("page.html")
LONGEST = 200_000  # maximum characters of a section's code
WORDS = (
    *("", "size", "state", "measure", "variant", "verdict", "paper", "claim", "on", "made of", "solved or tuned"),
    *("differs in", "differences", "option", "options", "chosen", "cannot be told from"),
    *("data", "file", "SHA-256", "input", "output", "reference", "promise"),
)  # headers of left-aligned columns


@dataclass(frozen=True)
class PageSection:
    """Section of a page: lines, captioned pictures, a table, and code. `kinds` style the last cell of each row."""

    title: str
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    kinds: Sequence[str] = ()
    pictures: Sequence[Callable[[], str]] = ()  # HTML or SVG; empty if it could not be drawn
    caption: str = ""
    code: str = ""
    script: str = ""  # JavaScript of its pictures
    data: Mapping[str, object] = field(default_factory=dict)  # its part of the page's data

    def markdown_lines(self) -> Iterator[str]:
        """Yield the section as Markdown, without its pictures and code; nothing if it has only these."""
        if (self.pictures or self.code) and not self.rows:
            return
        yield from [f"## {markdown(self.title)}", ""]
        for line in self.lines:
            yield from [markdown(line), ""]
        if self.rows:
            yield from [*markdown_table(self.heads, self.rows), ""]


@dataclass(frozen=True)
class Page:
    """A title, paragraphs below it, and sections."""

    title: str
    lead: Sequence[str]
    sections: Sequence[PageSection]
    whole: bool = False  # True to show code without a click, so that it is printed

    def html(self) -> str:
        """Render the page. Only its own scripts run. Raise UsageError if jinja2 is missing."""
        sections = [(one, _cut(one.code), [draw() for draw in one.pictures]) for one in self.sections]
        scripts = [_text("page.js"), *(one.script for one in self.sections if one.script)]
        hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
        texts = {"allowed": allowed, "style": _text("picture.css"), "scripts": scripts, "words": WORDS}
        return html_page(PAGE, page=self, sections=sections, **texts)

    def as_data(self) -> dict[str, object]:
        """Return the paragraphs below the title, and the data of the sections by name."""
        return {"lead": list(self.lead), **{name: value for one in self.sections for name, value in one.data.items()}}


def _cut(code: str) -> str:
    more = len(code) - LONGEST
    return code if more <= 0 else f"{code[:LONGEST]}\n... and {more:,} more characters"


def _text(name: str) -> str:
    return PAGE.with_name(name).read_text(encoding="utf-8")
