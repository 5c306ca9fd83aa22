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
        promise = f"{self.check.promise}: excepted, because {self.excepted}" if self.excepted else self.check.promise
        yield f"because '{self.because}' failed" if self.because else promise
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
        text.append("".join(f"\n{line}" for line in failures), style="red")
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
    found = [
        (f"{counts[status]} {status}", style) for status, style in STYLES.items() if counts[status] or status == "ok"
    ]
    parts = "1 part" if len(reports) == 1 else f"{len(reports)} parts"
    console.print(Text(f"{parts}, {counts.total()} checks: ") + Text(", ").join(Text(*one) for one in found))
