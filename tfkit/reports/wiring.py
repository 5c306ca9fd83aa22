"""The wiring of a layer, found by evaluating its residual layout on symbols instead of tensors.

The graph follows the layout's `forward`, including custom ones. If a forward does anything besides applying sublayers,
norms, sums and functions to the stream (such as reading its shape), it cannot be traced, and only its parts are
listed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from tfkit.components.residual import Branch
from tfkit.core.blueprint import LayerPlan
from tfkit.core.component import Config, Shape
from tfkit.core.context import Context

_NUMBERS = itertools.count()
SUM, PART, FUNCTION = "sum", "part", "function"


class Unwired(Exception):
    """Raised if the layout is not a series-parallel graph."""


class Signal:
    """A symbol for the stream, recording the operation and its inputs."""

    def __init__(self, kind: str, name: str, inputs: Sequence[Signal] = ()) -> None:
        self.kind, self.name, self.inputs = kind, name, tuple(inputs)
        self.number = next(_NUMBERS)
        self.uses = 0
        self.within: frozenset[Signal] = frozenset({self}).union(*(one.within for one in inputs))
        # dominators: the signals that every path from the layer's input passes
        every = frozenset.intersection(*(one.passed for one in inputs)) if inputs else frozenset()
        self.passed: frozenset[Signal] = every | {self}
        for one in inputs:
            one.uses += 1

    def __add__(self, other: object) -> Signal:
        return Signal(SUM, "+", [self, other]) if isinstance(other, Signal) else self

    def __mul__(self, other: object) -> Signal:
        if isinstance(other, Signal):
            return Signal(FUNCTION, "×", [self, other])
        return Signal(FUNCTION, f"× {other:.4g}" if isinstance(other, float | int) else "× weight", [self])

    __radd__, __rmul__ = __add__, __mul__

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: object, args: Sequence[object] = (), kwargs: object = None
    ) -> object:
        """Return a signal that stands for the result of a torch function."""
        flat = [entry for arg in args for entry in (arg if isinstance(arg, list | tuple) else (arg,))]
        name = function.__name__.strip("_")
        if name in ("mul", "rmul", "add", "radd", "sub"):
            first, second = (flat[0], flat[1]) if isinstance(flat[0], Signal) else (flat[1], flat[0])
            return first * second if "mul" in name else first + second
        return Signal(FUNCTION, name, [entry for entry in flat if isinstance(entry, Signal)])


@dataclass(frozen=True)
class Step:
    """A step on a path: a named part of the layer, or a function of the stream."""

    kind: str
    name: str


@dataclass(frozen=True)
class Junction:
    """Parallel paths that end in a sum or a function; an empty path is a residual connection."""

    paths: tuple[Path, ...]
    joined: str


Path = tuple["Step | Junction", ...]


def wiring(plan: LayerPlan, shape: Shape, norms: dict[str, Config | None]) -> Path | None:
    """Return the path of the stream through a layer, or None if the layout cannot be traced."""
    x = Signal("input", "x")
    with torch.device("meta"):
        layout = plan.residual.build(shape)
    try:
        out = layout.forward(x, [_branch(one.name, norms, plan.residual.branch_scale) for one in plan.sublayers])
        path = _path(out, x)
    except Exception:  # a custom forward may raise any exception for symbols
        return None
    expected = {one.name for one in plan.sublayers} | {name for name, norm in norms.items() if norm is not None}
    return path if expected == set(parts_of(path)) else None


def parts_of(path: Path) -> Iterator[str]:
    """Yield the names of the parts on a path."""
    for step in path:
        if isinstance(step, Junction):
            for one in step.paths:
                yield from parts_of(one)
        elif step.kind == PART:
            yield step.name


def _branch(name: str, norms: dict[str, Config | None], scale: float) -> Branch:
    """Build a branch whose sublayer and norms are replaced by maps from signals to signals."""
    functions: dict[str, Any] = {key: _same if norm is None else _part(key) for key, norm in norms.items()}
    sublayer = _part(name)
    return Branch(name, lambda x, context: sublayer(x), cast("Context", None), _same, functions, scale)


def _part(name: str) -> Callable[[Any], Any]:
    return lambda x: Signal(PART, name, [x])


def _same(x: object) -> Any:
    return x


def _path(signal: Signal, source: Signal) -> Path:
    """Return the steps from `source` to `signal`."""
    if signal is source:
        return ()
    if len(signal.inputs) == 1:
        return *_path(signal.inputs[0], source), Step(signal.kind, signal.name)
    return _split(list(_terms(signal, signal.kind)), signal.name, source)


def _terms(signal: Signal, kind: str) -> Iterator[Signal]:
    """Yield the terms of a sum; inner sums are flattened unless they are also used elsewhere."""
    for one in signal.inputs:
        if kind == SUM and one.kind == SUM and one.uses == 1:
            yield from _terms(one, kind)
        else:
            yield one


def _split(terms: list[Signal], joined: str, source: Signal) -> Path:
    """Return the path to joined `terms`: it forks after the last signal that all terms have in common."""
    last = max(frozenset.intersection(*(term.passed for term in terms)), key=lambda one: one.number)
    groups: list[list[Signal]] = []
    for term in terms:
        own = term.within - last.within
        sharing = [group for group in groups if any(own & (other.within - last.within) for other in group)]
        groups = [group for group in groups if group not in sharing]
        groups.append([one for group in sharing for one in group] + [term])
    if len(groups) == 1:
        raise Unwired
    paths = [_path(one[0], last) if len(one) == 1 else _split(one, joined, last) for one in groups]
    paths.sort(key=len)
    return *_path(last, source), Junction(tuple(paths), joined)
