"""Contract checks of registered parts, with readable results: `tfkit parts --verify`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import cached_property, partial
from importlib import import_module
from io import StringIO
from types import ModuleType

import torch
from rich.console import Console
from rich.status import Status

from tfkit.contracts.calls import forget
from tfkit.contracts.cases import MODEL, Case, cases, variants
from tfkit.contracts.check import CHECKS, Check, Failure, Outcome, Report, render, summary, with_needs
from tfkit.contracts.expect import Broken, describe
from tfkit.contracts.shapes import foreign
from tfkit.contracts.within import Home
from tfkit.core.component import Component
from tfkit.core.errors import UsageError
from tfkit.core.registry import CATALOGUES, REGISTRY

# in order of execution: dependencies before dependents
FILES = ("shapes", "visibility", "cache", "saving", "tokenizer", "objective", "optimizer", "metric", "strategy")
for _file in FILES:
    import_module(f"tfkit.contracts.{_file}")
for _check in sorted(CHECKS.values(), key=lambda check: FILES.index(check.function.__module__.rpartition(".")[2])):
    CHECKS[_check.name] = CHECKS.pop(_check.name)  # whichever file was imported first


def registered_by(modules: Sequence[ModuleType]) -> list[type[Component]]:
    """Return the parts that modules or packages register, by slot and name; raise UsageError if there are none."""
    names = {module.__name__ for module in modules}
    parts = (REGISTRY.get(slot, name) for slot in CATALOGUES for name in REGISTRY.names(slot))
    registered = [part for part in parts if any(f"{part.__module__}.".startswith(f"{name}.") for name in names)]
    if not registered:
        files = ", ".join(str(getattr(module, "__file__", None) or module.__name__) for module in modules)
        raise UsageError(f"{files}: registers no part; decorate a class with @tfkit.register(slot, name)")
    return registered


def _show(status: Status | None, what: str, check: Check) -> None:
    if status is not None:
        status.update(f"{what}: {check.name}")


def run_verification(
    parts: Sequence[type[Component]], console: Console | None, home: Home | None = None
) -> list[Report]:
    """Verify each part; with a console, print a line for each check and the counts."""
    reports = []
    for part in parts:
        what = f"{part.part_slot} {part.part_name}"
        with _quietly(), nullcontext() if console is None else console.status(what) as status:
            reports.append(verify(part, tell=partial(_show, status, what), home=home))
        if console is not None:
            render(reports[-1], console)
    if console is not None:
        summary(reports, console)
    return reports


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the logs, warnings and graph dumps that checks cause."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def verify(
    part: type[Component],
    checks: Collection[str] | None = None,
    options: int = 1,
    tell: Callable[[Check], None] | None = None,
    home: Home | None = None,
) -> Report:
    """Run all contract checks, or the named ones, on a registered part and report the results.

    Checks are repeated with options changed one at a time: `options=n` tests every n-th change, 0 none.
    `tell` is called before each check. Exceptions of the part are caught and reported. With `home`, parts of a model
    are checked in its recipe instead of in small ones.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Report(part, tuple(_Trial(part, options, home).outcomes(checks, tell)))
    finally:
        forget()


class _Trial:
    """Verification of one part."""

    def __init__(self, part: type[Component], options: int, home: Home | None = None) -> None:
        self.part = part
        self.within = home.case(part) if home is not None and part.part_slot in MODEL else None
        self.options = options
        self.failed: dict[str, str] = {}  # check -> the failed check to report as reason: itself, or a dependency

    def outcomes(self, names: Collection[str] | None, tell: Callable[[Check], None] | None) -> Iterator[Outcome]:
        """Yield the outcome of each check that applies to the part."""
        for check in CHECKS.values():
            if not check.required_of(self.part) or (names is not None and check.name not in names):
                continue
            because = next((self.failed[need] for need in with_needs(check.name) if need in self.failed), None)
            if tell is not None and because is None:
                tell(check)
            outcome = self._outcome(check) if because is None else self._left_out(check, because)
            if outcome is None:
                continue
            if outcome.failures and check.name in self.part.exceptions:
                outcome = Outcome(check, excepted=self.part.exceptions[check.name])
            if not outcome.holds:
                self.failed[check.name] = outcome.because or check.name
            yield outcome

    @cached_property
    def _plain(self) -> list[Case]:
        """The cases of the part with default options."""
        if self.within is not None:
            return [self.within]
        return cases(self.part.part_slot, self.part.part_name)

    @cached_property
    def _varied(self) -> list[Case]:
        """The cases of the part with one option changed."""
        if not self.options:
            return []
        return list(variants(self.part.part_slot, self.part.part_name, self.within))[:: self.options]

    def _groups(self, check: Check) -> Iterator[list[Case]]:
        """Yield the cases of a check in groups, the simplest first."""
        yield self._plain[:1] if check.once else self._plain
        if check.every_option:
            yield self._varied

    def _outcome(self, check: Check) -> Outcome | None:
        """Run a check and return its outcome, or None if it applies to no case."""
        count, failures, excepted = 0, [], ""
        try:
            for group in self._groups(check):
                applying = [case for case in group if check.applies(case)]
                count += len(applying)
                results = [_result(check, case) for case in applying]
                failures = [result for result in results if isinstance(result, Failure)]
                excepted = next((result for result in results if isinstance(result, str)), excepted)
                if failures:  # changed options would only repeat the failure
                    break
        except (Exception, SystemExit) as error:  # from the part's code that determines its capabilities
            failures = [Failure("", describe(error, self.part))]
        if failures and check.name == "built" and (hint := foreign(self.part)):
            failures.append(Failure("", hint))
        if not count and not failures and self.within and (others := self.within.lacking(check.capability)):
            return Outcome(check, excepted=f"{' and '.join(others)} beside it does not declare '{check.capability}'")
        return Outcome(check, tuple(failures), excepted="" if failures else excepted) if count or failures else None

    def _left_out(self, check: Check, because: str) -> Outcome | None:
        """Return the outcome of a check that is not run, or None if it applies to no case."""
        concerned = because == "built" or any(check.applies(case) for case in self._plain)
        return Outcome(check, because=because) if concerned else None


def _result(check: Check, case: Case) -> Failure | str | None:
    """Run the check on a case and return its failure, the reason why the part is excepted, or None."""
    try:
        return check(case)
    except Broken as error:
        return Failure(case.where, str(error))
