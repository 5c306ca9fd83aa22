"""What a recording consists of: sizes that remember where they come from, tensors, steps, and the scopes of modules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


class Size(int):
    """Size of an axis, or a sum or product of sizes; `origin` is ("shape", value, axis), or (sign, left, right)."""

    origin: tuple[Any, Any, Any]

    def __new__(cls, number: int, origin: tuple[Any, Any, Any]) -> Size:
        made = super().__new__(cls, number)
        made.origin = origin
        return made

    def __neg__(self) -> Size:
        return Size(-int(self), ("-", 0, self))


def _operator(name: str, reverse: bool) -> Callable[[Size, Any], Any]:
    compute, sign = getattr(operator, name), SIGNS[name]

    def method(self: Size, other: Any) -> Any:
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
        """Return the number of elements."""
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
    step: Step | None = None
    paths: Sequence[str] = ()
    shape: tuple[int, ...] = ()
    names: list[tuple[Scope | None, str]] = field(default_factory=list)
    usual: str | None = None


@dataclass(eq=False)
class Step:
    """One operation: `kind` is op, einops, leaf (a module of torch), dropout, call (of a scope), experts or constant.

    `results` has the structure of the returned tensors if these are nested; `many` is set for a tuple.
    """

    kind: str
    name: str
    function: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    scope: Scope | None = None
    child: Scope | None = None
    outs: list[Value] = field(default_factory=list)
    many: bool = False
    nested: list[Any] | None = None

    def values(self) -> list[Value]:
        """Return the tensors that the step reads, those whose sizes it reads included."""
        return list(values_in([self.args, self.kwargs]))


def values_in(argument: Any) -> Iterator[Value]:
    """Yield the recorded tensors in a (nested) argument."""
    if isinstance(argument, Value):
        yield argument
    elif isinstance(argument, Size):
        yield from values_in(argument.origin)
    elif isinstance(argument, slice):
        yield from values_in((argument.start, argument.stop, argument.step))
    elif isinstance(argument, (list, tuple)):
        for one in argument:
            yield from values_in(one)
    elif isinstance(argument, dict):
        yield from values_in(list(argument.values()))


def sized_in(argument: Any, within: bool = False) -> Iterator[Value]:
    """Yield the tensors of whose sizes an argument is made."""
    if isinstance(argument, Value):
        if within:
            yield argument
    elif isinstance(argument, Size):
        yield from sized_in(argument.origin, argument.origin[0] == "shape" or within)
    elif isinstance(argument, slice):
        yield from sized_in((argument.start, argument.stop))
    elif isinstance(argument, (list, tuple)):
        for one in argument:
            yield from sized_in(one, within)
    elif isinstance(argument, dict):
        yield from sized_in(list(argument.values()))


@dataclass(eq=False)
class Scope:
    """The call of a module with weights, which becomes a class, or of a function (`function` is its name)."""

    module: nn.Module | None
    path: str
    parent: Scope | None
    function: str = ""
    steps: list[Step] = field(default_factory=list)
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
        """Yield the scope and all within."""
        yield self
        for step in self.steps:
            if step.child is not None:
                yield from step.child.under()

    def move(self, parent: Scope) -> None:
        """Put the scope into another one."""
        self.parent = parent
        for scope in self.under():
            scope.depth = 0 if scope.parent is None else scope.parent.depth + 1


def tensors_of(result: Any) -> list[Tensor]:
    """Return the tensors in a (nested) result."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for one in result for tensor in tensors_of(one)] if isinstance(result, (tuple, list)) else []


def within(path: str, folder: str) -> bool:
    """True if the module at `path` is `folder` or inside it."""
    return folder in ("", path) or path.startswith(f"{folder}.")
