"""Sections of a page, the packages that it needs, and the environment that its runs were made with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tfkit.core.errors import RunError, UsageError
from tfkit.core.extras import installing
from tfkit.reports.formats import markdown, markdown_table
from tfkit.training.folder import RunFolder
from tfkit.training.history import read_history
from tfkit.training.progress import duration


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

    def markdown_lines(self) -> Iterator[str]:
        """Yield the section as Markdown, without its pictures and code; nothing if it has only these."""
        if (self.pictures or self.code) and not self.rows:
            return
        yield from [f"## {markdown(self.title)}", ""]
        for line in self.lines:
            yield from [markdown(line), ""]
        if self.rows:
            yield from [*markdown_table(self.heads, self.rows), ""]


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
