"""Checks and their registration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfkit.contracts.cases import MODEL, Case, declares
from tfkit.contracts.expect import Broken, describe
from tfkit.core.component import Component


@dataclass(frozen=True)
class Check:
    """A check: the promise, its conditions, and the function that tests a case.

    `needs` are checks that must pass first, because this check would only repeat their failure.
    """

    name: str
    promise: str
    function: Callable[[Case], None]
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
        return self.required_of(case.part) and self.when(case)

    def __call__(self, case: Case) -> None:
        """Check the case; any exception is converted to Broken."""
        try:
            self.function(case)
        except (Exception, SystemExit) as error:
            raise Broken(describe(error, case.part)) from error


CHECKS: dict[str, Check] = {}
# slots that are tested with these checks only
ENOUGH = {
    "init": ("built", "config", "shapes", "determinism", "seed", "initial", "saving"),
    "activation": (
        "built", "config", "shapes", "determinism", "precision", "gradients", "future", "padding", "few", "meta",
        "compile", "export"
    )
}  # fmt: skip


Function = Callable[[Case], None]


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
