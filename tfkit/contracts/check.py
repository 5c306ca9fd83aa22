"""Checks, their registration, and reports of their outcomes."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfkit.contracts.cases import MODEL, Case, declares
from tfkit.contracts.expect import Broken, describe, source_of
from tfkit.core.component import Component

Function = Callable[[Case], str | None]


@dataclass(frozen=True)
class Check:
    """A check: the promise, its conditions, and the function that tests a case.

    The function returns None, or the reason why the part is excepted in this case. `needs` are checks that must pass
    first, because this check would only repeat their failure.
    """

    name: str
    promise: str
    function: Function
    needs: tuple[str, ...]
    slots: tuple[str, ...] = MODEL
    capability: str = ""  # required capability, or ""
    when: Callable[[Case], bool] = lambda case: True
    every_option: bool = False  # repeat with each option changed
    once: bool = False  # run in one topology only
    slow: bool = False  # takes several seconds

    def concerns(self, part: type[Component]) -> bool:
        """True if the check applies to the slot of the part."""
        return part.part_slot in self.slots and self.name in ENOUGH.get(part.part_slot, (self.name,))

    def required_of(self, part: type[Component]) -> bool:
        """True if the check applies to the slot, and the part declares the required capability."""
        return self.concerns(part) and (not self.capability or declares(part, self.capability))

    def applies(self, case: Case) -> bool:
        """True if the part makes this promise and the case is suitable to test it."""
        return self.concerns(case.part) and (not self.capability or case.declares(self.capability)) and self.when(case)

    def __call__(self, case: Case) -> str | None:
        """Check the case, as the function does; any exception is converted to Broken."""
        try:
            return self.function(case)
        except (Exception, SystemExit) as error:
            raise Broken(describe(error, case.part)) from error


CHECKS: dict[str, Check] = {}
# slots that are tested with these checks only
ENOUGH = {
    "init": ("built", "config", "shapes", "determinism", "seed", "initial", "saving"),
    "activation": (
        "built", "config", "shapes", "determinism", "precision", "gradients", "future", "padding", "few", "meta",
        "compile", "export", "plain"
    )
}  # fmt: skip


def contract(promise: str, *needs: str, **how: Any) -> Callable[[Function], Function]:
    """Register a function as a check under its name without `check_`; `how` are fields of Check.

    `needs` must be registered before.
    """

    def enter(function: Function) -> Function:
        name = function.__name__.removeprefix("check_")
        CHECKS[name] = Check(name, promise, function, needs, **how)
        return function

    return enter


def with_needs(name: str) -> list[str]:
    """Return a check and all its dependencies, in order of execution."""
    needed, pending = set(), [name]
    while pending:
        one = pending.pop()
        needed.add(one)
        pending += CHECKS[one].needs
    return [one for one in CHECKS if one in needed]


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

    def as_data(self) -> dict[str, object]:
        """Return the report for --json."""
        checks = [{"name": one.check.name, "status": one.status, "lines": list(one.lines())} for one in self.outcomes]
        return {"slot": self.part.part_slot, "name": self.part.part_name, "holds": self.holds, "checks": checks}

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
