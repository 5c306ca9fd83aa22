"""Contents of a recording: sizes that remember their origin, tensors, operations, and the scopes of modules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

Arguments = Sequence[Any]  # of a function of torch
Options = Mapping[str, Any]
Origin = tuple[str, Any, Any]
SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


class Size(int):
    """Size of an axis, or a sum or product of sizes; `origin` is ("shape", value, axis), or (sign, left, right)."""

    origin: Origin

    def __new__(cls, number: int, origin: Origin) -> Size:
        made = super().__new__(cls, number)
        made.origin = origin
        return made

    def __neg__(self) -> Size:
        return Size(-int(self), ("-", 0, self))


def _operator(name: str, reverse: bool) -> Callable[[Size, object], object]:
    compute, sign = getattr(operator, name), SIGNS[name]

    def method(self: Size, other: object) -> object:
        if not isinstance(other, int):
            return NotImplemented if not isinstance(other, float) else getattr(float(self), f"__{name}__")(other)
        left, right = (other, self) if reverse else (self, other)
        if not other and (sign == "+" or (sign == "-" and not reverse)):
            return self
        return Size(compute(int(left), int(right)), (sign, left, right))

    return method


for _name in SIGNS:
    setattr(Size, f"__{_name}__", _operator(_name, False))
    setattr(Size, f"__r{_name}__", _operator(_name, True))


class Sizes(tuple[int, ...]):
    """Shape of a recorded tensor."""

    def numel(self) -> int:
        total: int = 1
        for size in self:
            total = total * size
        return total


@dataclass(eq=False)
class Value:
    """A recorded tensor: a weight (with its `paths` in the model), an input, or a result of `step`.

    `scope` is None for values made while the model was built, until they are used. `names` are the variables that held
    it, with the scopes; `usual` is the name that its operation suggests.
    """

    scope: Scope | None = None
    step: Operation | None = None
    paths: Sequence[str] = ()
    shape: tuple[int, ...] = ()
    names: list[tuple[Scope | None, str]] = field(default_factory=list)
    usual: str | None = None


@dataclass(eq=False)
class Operation:
    """One step: `kind` is op, einops, leaf (a module of torch), dropout, call (of a scope), experts or constant.

    `many` is set if it returns a tuple, and `nested` is the tuple if it is not one of tensors only.
    """

    kind: str
    name: str
    function: Any = None
    args: Arguments = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    scope: Scope | None = None
    child: Scope | None = None
    outs: list[Value] = field(default_factory=list)
    many: bool = False
    nested: Sequence[object] | None = None

    def values(self) -> list[Value]:
        """Return the tensors that the step reads, those whose sizes it reads included."""
        return list(values_in([self.args, self.kwargs]))


def leaves(argument: object) -> Iterator[object]:
    """Yield what is in nested lists, tuples, mappings and slices."""
    if isinstance(argument, slice):
        argument = (argument.start, argument.stop, argument.step)
    if isinstance(argument, (list, tuple, dict)):
        for one in argument.values() if isinstance(argument, dict) else argument:
            yield from leaves(one)
    else:
        yield argument


def values_in(argument: object) -> Iterator[Value]:
    """Yield the recorded tensors in an argument, and those of whose sizes it is made."""
    for one in leaves(argument):
        if isinstance(one, Value):
            yield one
        elif isinstance(one, Size):
            yield from values_in(one.origin)


def sized_in(argument: object) -> Iterator[Value]:
    """Yield the tensors of whose sizes an argument is made."""
    for one in leaves(argument):
        if isinstance(one, Size):
            yield from values_in(one.origin)


@dataclass(eq=False)
class Scope:
    """The call of a module with weights, which becomes a class, or of a function (`function` is its name)."""

    module: nn.Module | None
    path: str
    parent: Scope | None
    function: str = ""
    always: bool = False  # all given tensors are arguments, even if they are not read
    steps: list[Operation] = field(default_factory=list)
    given: list[Value] = field(default_factory=list)  # arguments of the call, in their order
    inputs: list[Value] = field(default_factory=list)  # tensors from outside that the body reads
    outs: list[Value] = field(default_factory=list)  # tensors of the body that are read outside
    depth: int = 0

    def __post_init__(self) -> None:
        self.depth = 0 if self.parent is None else self.parent.depth + 1

    def chain(self) -> list[Scope]:
        """Return the scope and all that contain it, innermost first."""
        return [self, *([] if self.parent is None else self.parent.chain())]

    def under(self) -> Iterator[Scope]:
        yield self
        for step in self.steps:
            if step.child is not None:
                yield from step.child.under()

    def move(self, parent: Scope) -> None:
        self.parent = parent
        for scope in self.under():
            scope.depth = 0 if scope.parent is None else scope.parent.depth + 1


def tensors_of(result: object) -> list[Tensor]:
    """Return the tensors in a (nested) result."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for one in result for tensor in tensors_of(one)] if isinstance(result, (tuple, list)) else []


def within(path: str, folder: str) -> bool:
    """True if the module at `path` is `folder` or inside it."""
    return folder in ("", path) or path.startswith(f"{folder}.")
