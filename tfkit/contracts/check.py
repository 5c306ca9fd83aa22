"""Checks and their registration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    slots: tuple[str, ...]
    capability: str  # required capability, or ""
    needs: tuple[str, ...]
    when: Callable[[Case], bool]
    every_option: bool  # repeat with each option changed
    once: bool  # run in one topology only
    slow: bool  # takes several seconds

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


def always(case: Case) -> bool:
    """True for any case."""
    return True


def contract(
    promise: str,
    *needs: str,
    slots: tuple[str, ...] = MODEL,
    capability: str = "",
    when: Callable[[Case], bool] = always,
    every_option: bool = False,
    once: bool = False,
    slow: bool = False,
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a function as a check under its name without `check_`; `needs` must be registered before."""

    def enter(function: Callable[[Case], None]) -> Callable[[Case], None]:
        name = function.__name__.removeprefix("check_")
        CHECKS[name] = Check(name, promise, function, slots, capability, needs, when, every_option, once, slow)
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
