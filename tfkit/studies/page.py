"""The files of a report: a table of all runs, exact data, and a page in Markdown and in self-contained HTML."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tfkit.core.errors import RunError, UsageError
from tfkit.core.extras import installing
from tfkit.reports.formats import html_page, markdown, markdown_table
from tfkit.storage.files import write_json, write_text
from tfkit.training.folder import RunFolder
from tfkit.training.history import read_history
from tfkit.training.progress import duration

SCRIPT = Path(__file__).with_name("page.js")
WORDS = (
    *("", "size", "state", "measure", "variant", "verdict", "paper", "claim", "on", "made of", "solved or tuned"),
    "differs in",
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

    @property
    def is_text(self) -> bool:
        """True if the section is part of the page in Markdown."""
        return bool(self.rows) or not (self.pictures or self.code)

    def markdown_lines(self) -> Iterator[str]:
        """Yield the section as Markdown, without its pictures and code."""
        yield from [f"## {markdown(self.title)}", ""]
        for line in self.lines:
            yield from [markdown(line), ""]
        if self.rows:
            yield from [*markdown_table(self.heads, self.rows), ""]


class ReportFiles(ABC):
    """A report that is written as several files."""

    CSV: ClassVar[str]
    JSON: ClassVar[str]
    MARKDOWN: ClassVar[str]
    HTML: ClassVar[str]
    OF: ClassVar[str]  # title of the recipe's text

    @property
    @abstractmethod
    def title(self) -> str:
        """Title of the page."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Text of the recipe."""

    @abstractmethod
    def lead(self) -> Iterator[str]:
        """Yield the lines below the title, the most important first."""

    @abstractmethod
    def sections(self) -> Iterator[PageSection]:
        """Yield the sections of the page."""

    @abstractmethod
    def csv(self) -> str:
        """Format a line for each run."""

    @abstractmethod
    def as_data(self) -> dict[str, object]:
        """Return the contents of the JSON file."""

    def more_files(self) -> Mapping[str, str]:
        """Return the contents of additional files by name."""
        return {}

    def write(self, folder: Path) -> None:
        """Write all files, the page last. Raise UsageError for a missing package before anything is written."""
        check_packages()
        for name, text in self.more_files().items():
            write_text(folder / name, text)
        write_text(folder / self.CSV, self.csv())
        write_json(folder / self.JSON, self.as_data())
        write_text(folder / self.MARKDOWN, self.markdown())
        write_text(folder / self.HTML, self.html())

    def html(self) -> str:
        """Render the page."""
        code = [PageSection(self.OF, code=self.text)] if self.text else []
        sections = [(one, [draw() for draw in one.pictures]) for one in (*self.sections(), *code)]
        script = SCRIPT.read_text(encoding="utf-8")
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        words = {"title": self.title, "lead": list(self.lead()), "words": WORDS, "script": script, "allowed": allowed}
        return html_page(Path(__file__).with_name("page.html"), sections=sections, **words)

    def markdown(self) -> str:
        """Render the page in Markdown, without the pictures and the recipe."""
        lines = [f"# {markdown(self.title)}", ""]
        lines += [text for line in self.lead() for text in (markdown(line), "")]
        lines += [line for one in self.sections() if one.is_text for line in one.markdown_lines()]
        return "\n".join(lines)


def lists(groups: Mapping[str, Iterable[tuple[str, str]]]) -> Iterator[PageSection]:
    """Yield a two-column section for each title that has entries."""
    for title, pairs in groups.items():
        if rows := list(pairs):
            yield PageSection(title, heads=["", ""], rows=rows)


def check_packages() -> None:
    """Raise UsageError if a package that reports need is missing."""
    missing = [name for name in ("scipy", "matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"a study needs the packages {', '.join(missing)}: {installing('study')}")


def environment_of(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """Return the distinct versions, machines, devices and threads of the runs, and their total time."""
    table: dict[str, dict[str, None]] = {}
    seconds = 0.0
    for folder in folders:
        try:
            history = read_history(folder)
        except RunError:
            continue
        for start in history.starts if history is not None else ():
            facts = {**start.versions, **{key: str(value) for key, value in start.machine.items() if key != "memory"}}
            for name, value in {**facts, "device": start.device, "threads": str(start.threads)}.items():
                table.setdefault(name, {})[value] = None
        seconds += history.seconds if history is not None else 0.0
    rows = [(name, ", ".join(values)) for name, values in table.items()]
    return [*rows, ("time of all runs", duration(seconds))] if rows else []
