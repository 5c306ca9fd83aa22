"""Results of contract checks, and their presentation."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfkit.contracts.check import CHECKS, Check
from tfkit.contracts.expect import source_of
from tfkit.core.component import Component

STYLES = {"ok": "green", "excepted": "cyan", "FAILED": "bold red", "not run": "yellow"}
SHOWN = 3  # maximum number of failures listed per check


@dataclass(frozen=True)
class Failure:
    """The message of a failed check, and the topology and options with which it failed."""

    where: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """Result of a check: passed, failed, excepted or not run.

    `because` names the failed check that prevented it from running; `excepted` is the reason why the part may fail it.
    """

    check: Check
    failures: tuple[Failure, ...] = ()
    because: str = ""
    excepted: str = ""

    @property
    def status(self) -> str:
        """Status: ok, excepted, FAILED or not run."""
        return "FAILED" if self.failures else "not run" if self.because else "excepted" if self.excepted else "ok"

    @property
    def holds(self) -> bool:
        """True if the check passed or is excepted."""
        return self.status in ("ok", "excepted")

    def lines(self) -> Iterator[str]:
        """Yield the lines for this check in a report."""
        if self.because:
            yield f"because '{self.because}' failed"
            return
        yield f"{self.check.promise}: excepted, because {self.excepted}" if self.excepted else self.check.promise
        places: dict[str, list[str]] = {}
        for failure in self.failures:
            places.setdefault(failure.message, []).append(failure.where)
        for message, found in list(places.items())[:SHOWN]:
            where = "; ".join(filter(None, found))
            yield f"{where}: {message}" if where else message
        if len(places) > SHOWN:
            yield f"and {len(places) - SHOWN} more failures"


@dataclass(frozen=True)
class Report:
    """All results for one part."""

    part: type[Component]
    outcomes: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """True if every contract holds."""
        return all(outcome.holds for outcome in self.outcomes)

    @property
    def place(self) -> str:
        """File and line of the class; the path is relative if inside the working directory."""
        file = source_of(self.part)
        if file is None:
            return "<interactive>"
        try:
            line = f":{inspect.getsourcelines(self.part)[1]}"
        except (OSError, TypeError):
            line = ""
        here = Path.cwd()
        return f"{file.relative_to(here) if file.is_relative_to(here) else file}{line}"

    @property
    def undeclared(self) -> list[str]:
        """Capabilities of the slot that the part does not declare."""
        concerned = (check for check in CHECKS.values() if check.concerns(self.part) and check.capability)
        return sorted({check.capability for check in concerned if not check.required_of(self.part)})

    def find(self, name: str) -> Outcome | None:
        """Return the outcome of the check `name`, or None."""
        return next((outcome for outcome in self.outcomes if outcome.check.name == name), None)

    def __str__(self) -> str:
        broken = [outcome for outcome in self.outcomes if outcome.failures]
        lines = [f"{outcome.check.name}: {line}" for outcome in broken for line in outcome.lines()]
        return "\n".join((f"{self.part.part_slot} '{self.part.part_name}' ({self.place})", *lines))


def render(report: Report, console: Console) -> None:
    """Print a heading for the part and a line for each check."""
    head = Text.assemble((f"{report.part.part_slot} {report.part.part_name}", "bold"), "  ", (report.place, "dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for outcome in report.outcomes:
        promise, *failures = outcome.lines()
        text = Text(promise, style="dim" if outcome.holds else "")
        for line in failures:
            text.append(f"\n{line}", style="red")
        table.add_row(Text(f"  {outcome.status}", style=STYLES[outcome.status]), outcome.check.name, text)
    if report.undeclared:
        table.add_row(Text("  -", style="dim"), "", Text(f"not declared: {', '.join(report.undeclared)}", style="dim"))
    console.print(head)
    console.print(table)
    console.print()


def summary(reports: Iterable[Report], console: Console) -> None:
    """Print the number of parts and checks, and the counts by status."""
    reports = list(reports)
    counts = Counter(outcome.status for report in reports for outcome in report.outcomes)
    parts, checks = len(reports), sum(counts.values())
    text = Text(f"{parts} {'part' if parts == 1 else 'parts'}, {checks} checks: ")
    for status in STYLES:
        if counts[status] or status == "ok":
            text.append(", " * (status != "ok")).append(f"{counts[status]} {status}", style=STYLES[status])
    console.print(text)
