"""Checks, their registration, and numeric comparison."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tfkit.core.blame import shortened
from tfkit.core.component import Component
from tfkit.core.errors import TfkitError

if TYPE_CHECKING:
    from tfkit.contracts.cases import Case

T = TypeVar("T")
SAME = 1e-6  # tolerance for identical computations
EQUAL = 1e-5  # tolerance for reordered computations; some parts compute in float32
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')  # traceback frame within a message

MODEL = (
    "attention", "mixer", "position", "feedforward", "norm", "residual", "embedding", "head", "mask", "activation",
    "init", "model",
)  # fmt: skip
SUBLAYERS = ("attention", "mixer", "feedforward")
MIXING = ("attention", "mixer")  # sublayers that mix tokens


class Broken(Exception):
    """A violated contract; the message describes the observation."""


@dataclass(frozen=True)
class Check:
    """Contract: its promise, its conditions, and the function that checks a case.

    `needs` are checks that must pass first; otherwise this one would only repeat their failure.
    """

    name: str
    promise: str
    function: Callable[[Case], None]
    slots: tuple[str, ...]
    capability: str  # required capability; "" = none
    needs: tuple[str, ...]
    when: Callable[[Case], bool]
    every_option: bool  # also run with each option changed
    once: bool  # independent of the topology
    slow: bool  # takes seconds

    def concerns(self, part: type[Component]) -> bool:
        """True if the check is meaningful for the part's slot."""
        return part.part_slot in self.slots and self.name in ENOUGH.get(part.part_slot, (self.name,))

    def asked_of(self, part: type[Component]) -> bool:
        """True if the check is meaningful for the part and the part declares its capability."""
        return self.concerns(part) and (not self.capability or declares(part, self.capability))

    def applies(self, case: Case) -> bool:
        """True if the part makes this promise and the case can test it."""
        return self.asked_of(case.part) and self.when(case)

    def __call__(self, case: Case) -> None:
        """Check the case; any exception becomes Broken."""
        try:
            self.function(case)
        except (Exception, SystemExit) as error:
            raise Broken(told(error, case.part)) from error


CHECKS: dict[str, Check] = {}
# slots for which these checks are sufficient
ENOUGH = {
    "init": ("built", "config", "shapes", "determinism", "seed", "initial", "saving"),
    "activation": (
        "built", "config", "shapes", "determinism", "precision", "gradients", "future", "padding", "few", "meta",
        "compile", "export",
    ),
}  # fmt: skip


def declares(part: type[Component], capability: str) -> bool:
    """True if the part declares `capability`; a part that declares nothing must satisfy everything."""
    return not part.capabilities or capability in part.capabilities


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
    """Register a check in CHECKS by its name without `check_`; `needs` must be registered before."""

    def enter(function: Callable[[Case], None]) -> Callable[[Case], None]:
        name = function.__name__.removeprefix("check_")
        CHECKS[name] = Check(name, promise, function, slots, capability, needs, when, every_option, once, slow)
        return function

    return enter


def with_needs(name: str) -> list[str]:
    """Return the check and all its dependencies in order of execution."""
    wanted, pending = set(), [name]
    while pending:
        one = pending.pop()
        wanted.add(one)
        pending += CHECKS[one].needs
    return [one for one in CHECKS if one in wanted]


def with_dependents(name: str) -> list[str]:
    """Return the checks that depend on `name`, in order of execution."""
    return [one for one in CHECKS if one != name and name in with_needs(one)]


# --- in words


def told(error: BaseException, part: type[Component]) -> str:
    """Describe an error; if the part raised it, include the line in its file."""
    if isinstance(error, (Broken, TfkitError)):
        return str(error)
    message = shortened(error)
    return f"it raises {type(error).__name__}{f': {message}' * bool(message)}{where(error, part)}"


def source_of(part: type[Component]) -> Path | None:
    """Return the source file of the part, or None."""
    try:
        return Path(inspect.getfile(part))
    except (OSError, TypeError):
        return None


def where(error: BaseException, part: type[Component]) -> str:
    """Return the innermost line of the part's file in the traceback or the message."""
    source = source_of(part)
    if source is None:
        return ""
    own = source.resolve()
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    for file, line, name in reversed([*FRAME.findall(str(error)), *frames]):
        if Path(file).resolve() == own:
            return f" ({own.name}:{line}, in {name.rstrip(',')})"
    return ""


# --- copying


def twins(thing: T, what: str, part: type[Component]) -> Iterator[tuple[str, T]]:
    """Yield a pickled and a copied twin, each with its description; nothing else is ever unpickled.

    Raises Broken on failure: Python's own message differs between versions and need not mention pickle.
    """
    makers: tuple[tuple[str, Callable[[T], T]], ...] = (
        ("pickled", lambda one: pickle.loads(pickle.dumps(one))),
        ("copied", copy.deepcopy),
    )
    for how, make in makers:
        try:
            twin = make(thing)
        except Exception as error:
            raise Broken(f"{what} cannot be {how}: {shortened(error)}{where(error, part)}") from error
        yield how, twin


# --- comparing


def expect(holds: object, message: str) -> None:
    """Raise Broken with the message unless `holds`."""
    if not holds:
        raise Broken(message)


def far(a: Tensor, b: Tensor) -> float:
    """Maximum difference, relative to the magnitude of `b`; infinite for NaN."""
    if a.numel() == 0:
        return 0.0
    difference = (a.double() - b.double()).abs().max().item()
    return difference / max(1.0, b.double().abs().max().item()) if difference == difference else float("inf")


def expect_equal(a: Tensor, b: Tensor, what: str, tolerance: float = EQUAL) -> None:
    """Raise Broken unless shapes match and values agree within the tolerance."""
    expect(a.shape == b.shape, f"{what}: shape {list(a.shape)} instead of {list(b.shape)}")
    distance = far(a, b)
    expect(distance <= tolerance, f"{what}: off by {distance:.1e}")


def expect_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise Broken if a tensor has non-finite values."""
    for name, tensor in tensors.items():
        expect(bool(torch.isfinite(tensor).all()), f"{what}: {name} is not finite")
