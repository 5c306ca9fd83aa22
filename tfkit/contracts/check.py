"""What a check is, how a contract is entered, and how numbers are compared."""

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
SAME = 1e-6  # of outputs that come from the same numbers
EQUAL = 1e-5  # of outputs computed in another order; some parts work in float32
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')  # of a traceback within a message

MODEL = (
    "attention", "mixer", "position", "feedforward", "norm", "residual", "embedding", "head", "mask", "activation",
    "init", "model",
)  # fmt: skip
SUBLAYERS = ("attention", "mixer", "feedforward")
MIXING = ("attention", "mixer")  # the sublayers that look at several tokens


class Broken(Exception):
    """A contract does not hold; the message says what was seen."""


@dataclass(frozen=True)
class Check:
    """A contract: what it promises, when it is asked for, and the function that holds a case to it.

    `needs` are the checks that must have held before; where one failed, this one would only say so again.
    """

    name: str
    promise: str
    function: Callable[[Case], None]
    slots: tuple[str, ...]
    capability: str  # what the part must declare; "" = nothing
    needs: tuple[str, ...]
    when: Callable[[Case], bool]
    every_option: bool  # worth running with each option changed
    once: bool  # the same in every topology
    slow: bool  # takes seconds

    def concerns(self, part: type[Component]) -> bool:
        """Whether parts of that slot have anything to do with it."""
        return part.part_slot in self.slots and self.name in ENOUGH.get(part.part_slot, (self.name,))

    def asked_of(self, part: type[Component]) -> bool:
        """Whether it concerns the part, which declares what it is about."""
        return self.concerns(part) and (not self.capability or declares(part, self.capability))

    def applies(self, case: Case) -> bool:
        """Whether the part promises this, and the case has a use for it."""
        return self.asked_of(case.part) and self.when(case)

    def __call__(self, case: Case) -> None:
        """Hold the case to the contract; raises Broken, whatever the part itself raises."""
        try:
            self.function(case)
        except (Exception, SystemExit) as error:
            raise Broken(told(error, case.part)) from error


CHECKS: dict[str, Check] = {}
# slots of which some checks tell all there is to know
ENOUGH = {
    "init": ("built", "config", "shapes", "determinism", "seed", "initial", "saving"),
    "activation": (
        "built", "config", "shapes", "determinism", "precision", "gradients", "future", "padding", "few", "meta",
        "compile", "export",
    ),
}  # fmt: skip


def declares(part: type[Component], capability: str) -> bool:
    """Whether the part promises it; a part that declares nothing at all is asked for everything."""
    return not part.capabilities or capability in part.capabilities


def always(case: Case) -> bool:
    """Applies to any case."""
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
    """Enter a check into CHECKS under its name without `check_`; `needs` are entered before it."""

    def enter(function: Callable[[Case], None]) -> Callable[[Case], None]:
        name = function.__name__.removeprefix("check_")
        CHECKS[name] = Check(name, promise, function, slots, capability, needs, when, every_option, once, slow)
        return function

    return enter


def with_needs(name: str) -> list[str]:
    """The check and all that must have held before it, in the order in which they run."""
    wanted, pending = set(), [name]
    while pending:
        one = pending.pop()
        wanted.add(one)
        pending += CHECKS[one].needs
    return [one for one in CHECKS if one in wanted]


def with_dependents(name: str) -> list[str]:
    """The checks that mean nothing where `name` fails, in the order in which they run."""
    return [one for one in CHECKS if one != name and name in with_needs(one)]


# --- in words


def told(error: BaseException, part: type[Component]) -> str:
    """What went wrong; of an error that the part raised, also where in its own file."""
    if isinstance(error, (Broken, TfkitError)):
        return str(error)
    message = shortened(error)
    return f"it raises {type(error).__name__}{f': {message}' * bool(message)}{where(error, part)}"


def source_of(part: type[Component]) -> Path | None:
    """The file that the part is written in, None where there is none."""
    try:
        return Path(inspect.getfile(part))
    except (OSError, TypeError):
        return None


def where(error: BaseException, part: type[Component]) -> str:
    """The innermost line of the part's own file that the error came from, or that its message tells of."""
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
    """Yield the thing pickled, then copied, each after the word for it; nothing else is ever unpickled.

    Raises Broken where that fails: Python's own message differs between its versions and need not name pickle.
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
    """The greatest difference, relative to the size of the numbers; infinite where one is not a number."""
    if a.numel() == 0:
        return 0.0
    difference = (a.double() - b.double()).abs().max().item()
    return difference / max(1.0, b.double().abs().max().item()) if difference == difference else float("inf")


def expect_equal(a: Tensor, b: Tensor, what: str, tolerance: float = EQUAL) -> None:
    """Raise Broken unless the two have one shape and, within the tolerance, the same numbers."""
    expect(a.shape == b.shape, f"{what}: shape {list(a.shape)} instead of {list(b.shape)}")
    distance = far(a, b)
    expect(distance <= tolerance, f"{what}: off by {distance:.1e}")


def expect_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise Broken where a tensor holds something that is no finite number."""
    for name, tensor in tensors.items():
        expect(bool(torch.isfinite(tensor).all()), f"{what}: {name} is not finite")
