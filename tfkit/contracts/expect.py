"""The exception for violated contracts, its messages and comparisons; float64 computed only in float64."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfkit.core.blame import shortened
from tfkit.core.component import Component
from tfkit.core.errors import TfkitError
from tfkit.core.output import some

T = TypeVar("T")
SAME = 1e-6  # tolerance for identical computations
EQUAL = 1e-5  # tolerance for reordered computations; some parts compute in float32
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')  # traceback frame within a message


class Broken(Exception):
    """A violated contract; the message says what was observed."""


def describe(error: BaseException, part: type[Component]) -> str:
    """Describe an exception, with file and line if it was raised in the file of the part."""
    if isinstance(error, (Broken, TfkitError)):
        return str(error)
    message = shortened(error)
    return f"raises {type(error).__name__}{f': {message}' * bool(message)}{where(error, part)}"


def source_of(part: type[Component]) -> Path | None:
    """Return the source file of the part, or None."""
    try:
        return Path(inspect.getfile(part))
    except (OSError, TypeError):
        return None


def where(error: BaseException, part: type[Component]) -> str:
    """Return the innermost line in the part's file, from the traceback or the message, or ""."""
    source = source_of(part)
    if source is None:
        return ""
    own = source.resolve()
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    for file, line, name in reversed([*FRAME.findall(str(error)), *frames]):
        if Path(file).resolve() == own:
            return f" ({own.name}:{line}, in {name.rstrip(',')})"
    return ""


def twins(thing: T, what: str, part: type[Component]) -> Iterator[tuple[str, T]]:
    """Yield a pickled and a deep copy of an object, each with its description.

    Raise Broken on failure, with our own message: Python's differs between versions and may not mention pickle.
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


def expect(holds: object, message: str) -> None:
    """Raise Broken with the message if `holds` is false."""
    if not holds:
        raise Broken(message)


def far(a: Tensor, b: Tensor) -> float:
    """Return the maximum absolute difference relative to the magnitude of `b`; infinity for NaN."""
    if a.numel() == 0:
        return 0.0
    difference = (a.double() - b.double()).abs().max().item()
    return difference / max(1.0, b.double().abs().max().item()) if difference == difference else float("inf")


def expect_equal(a: Tensor, b: Tensor, what: str, tolerance: float = EQUAL) -> None:
    """Raise Broken unless shapes match and values agree within the tolerance."""
    expect(a.shape == b.shape, f"{what}: shape {list(a.shape)} instead of {list(b.shape)}")
    distance = far(a, b)
    expect(distance <= tolerance, f"{what}: off by {distance:.1e}")


Compared = Iterator[tuple[str, Tensor, Tensor]]  # description, actual and expected values


def expect_all(compared: Compared, tolerance: float = EQUAL) -> None:
    """Raise Broken unless all pairs agree within the tolerance."""
    for what, value, expected in compared:
        expect_equal(value, expected, what, tolerance)


def expect_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise Broken if a tensor contains NaN or infinity."""
    for name, tensor in tensors.items():
        expect(bool(torch.isfinite(tensor).all()), f"{what}: {name} is not finite")


# bfloat16 is not included: a float64 model uses it only if an option says so
LOWER = frozenset({torch.float32, torch.float16})


class _Mixing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recorder of operations that mix float64 with a lower dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        """Run the operation and record it if it mixes dtypes."""
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()}
        if torch.float64 in dtypes and dtypes & LOWER:
            self.operations[str(func)] = None
        return out


@contextlib.contextmanager
def in_float64(where: str) -> Iterator[None]:
    """Raise Broken, starting with `where`, if an operation within the block mixes float64 with a lower dtype.

    Both inputs and outputs are checked, since values that passed through a lower dtype are inexact.
    """
    with _Mixing() as mixing:
        yield
    if mixing.operations:
        raise Broken(f"{where}, {some(mixing.operations)} uses float32; compute in the dtype of the input")
