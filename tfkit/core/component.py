"""The sizes that a model's parts share, and the part: a class with a nested `Config`, registered in a slot.

    @register("feedforward", "mine")
    class Mine(FeedForward):
        class Config(FeedForward.Config):
            d_ff: Width

        def __init__(self, config: Config, shape: Shape) -> None: ...
        def forward(self, x: Tensor, context: Context) -> Tensor: ...

`Config` holds the part's own options, `Shape` the sizes shared by the model, so that no width is written twice. A
field that holds a part is typed by its slot: `Annotated[Config, Slot("feedforward")]` is resolved by the registry
(core/options.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Le
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict
from pydantic.fields import FieldInfo

from tfkit.core.bounds import COUNT, Tree

Side = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack and of one of its layers.

    `d_model` is the width of input and output, `memory_width` the width of the states that cross-attention attends to,
    or None. `layer` is the index of the layer, `depth` the number of layers in the stack, `other_depth` that of the
    other stack, or 0. `causal` is set if the future is hidden. `num_heads` is the number of heads in the attentions
    that use the position; None if they differ. `stored` are the names that earlier layers write to `context.store`.
    `sublayers` are the names of the layer's sublayers, and `streams` is the number of streams that its residual layout
    reads, or None.
    """

    d_model: int
    vocab_size: int | None = None
    max_length: int | None = None
    side: Side = "decoder"
    causal: bool = False
    layer: int = 0
    depth: int = 1
    other_depth: int = 0
    memory_width: int | None = None
    num_heads: int | None = None
    stored: frozenset[str] = frozenset()
    sublayers: tuple[str, ...] = ()
    streams: int | None = None

    @property
    def source_width(self) -> int:
        """Input width of the key and value projections."""
        return self.d_model if self.memory_width is None else self.memory_width


def _in_float32(value: float) -> float:
    if abs(value) > 1e18:
        raise ValueError(f"expected a number of at most 1e18, so that its square fits in float32, got {value:g}")
    return value


Number = Annotated[float, AfterValidator(_in_float32)]
PositiveFloat = Annotated[float, Field(gt=0), AfterValidator(_in_float32)]
NonNegativeFloat = Annotated[float, Field(ge=0), AfterValidator(_in_float32)]


class Problem(NamedTuple):
    """A fault found by `Config.check`: the option (a dotted path within the part) and the message.

    `at` is the path of the section that has the option (such as `data.batch`), if it is not the part.
    """

    option: str
    message: str
    suggestion: str | None = None
    at: str = ""


class Doubt(Problem):
    """Warning from `Config.check` about an option that is valid but probably unintended."""


class Unlearnable(Problem):
    """Fault that keeps some weights from learning: an error in recipes that train."""


class Config(BaseModel):
    """Options of a part: strict (`true` is not a number), closed (unknown options are errors) and frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    part: ClassVar[type[Component]]

    def build(self, *arguments: object) -> Any:
        """Build the part; its slot defines the arguments (a Shape for parts of a layer)."""
        part: Any = self.part
        return part(self, *arguments)

    def check(self, shape: Any) -> Iterator[Problem]:
        """Yield options that do not fit `shape` (Problem), prevent learning (Unlearnable) or are suspicious (Doubt).

        Called during validation; must not allocate.
        """
        yield from ()

    def spelled(self) -> Tree:
        """Return the part as a recipe mapping: its type and every option."""
        return {"type": self.part.part_name, **{name: spell(getattr(self, name)) for name in type(self).model_fields}}

    def __hash__(self) -> int:
        return hash((type(self), *(_hashable(getattr(self, name)) for name in type(self).model_fields)))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Set a unique title, so that JSON Schemas do not collide, bound integers, and let tuples accept lists."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.model_config["title"] = cls.__qualname__
        if _bound_counts(cls.model_fields.values()):
            cls.model_rebuild(force=True)


def _bound_counts(fields: Iterable[FieldInfo]) -> bool:
    """Bound each unbounded integer option by COUNT. Return True if any option was bounded."""
    found = False
    for field in fields:
        if field.annotation is int and not any(hasattr(mark, "le") or hasattr(mark, "lt") for mark in field.metadata):
            field.metadata.append(Le(COUNT.most))
        elif (bounded := _bounded(field.annotation)) is not field.annotation and field.annotation is not int:
            field.annotation = bounded
        else:
            continue
        found = True
    return found


def _bounded(annotation: object) -> Any:
    """Return the type with every plain `int` within it bounded, and tuples that accept a recipe's list."""
    if annotation is int:
        return Annotated[int, Le(COUNT.most)]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin not in (Union, UnionType, tuple, list, dict):
        return annotation
    bounded = [_bounded(kind) for kind in inner]
    if origin is not tuple and all(new is old for new, old in zip(bounded, inner, strict=True)):
        return annotation
    if origin in (Union, UnionType):
        return reduce(or_, bounded)
    marked: Any = Annotated
    return marked[origin[tuple(bounded)], Strict(False)] if origin is tuple else origin[tuple(bounded)]


def _hashable(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return frozenset((key, _hashable(entry)) for key, entry in value.items()) if isinstance(value, Mapping) else value


PartConfig = Config  # alias that a part's nested Config does not shadow


def with_nested(config: Config) -> Iterator[Config]:
    """Yield a part and the parts in its options."""
    yield config
    for name in type(config).model_fields:
        if isinstance(value := getattr(config, name), Config):
            yield from with_nested(value)


def spell(value: object) -> Any:
    """Convert a validated value to plain recipe data."""
    if isinstance(value, Config):
        return value.spelled()
    if isinstance(value, BaseModel):
        return {name: spell(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: spell(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [spell(entry) for entry in value]
    return value


def whole_numbers(value: object, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield dotted keys and integers from nested mappings; lists are skipped."""
    if type(value) is int:
        yield path, value
    for name, child in value.items() if isinstance(value, Mapping) else ():
        yield from whole_numbers(child, f"{path}.{name}" if path else name)


class Component:
    """Base class of every part. Registration sets `part_slot` and `part_name`."""

    Config: ClassVar[type[Config]] = Config
    part_slot: ClassVar[str] = ""
    part_name: ClassVar[str] = ""
    capabilities: ClassVar[frozenset[str]] = frozenset()  # what it can do, from core/inputs.py
    needs: ClassVar[frozenset[str]] = frozenset()  # call inputs (core/inputs.py) that it reads, besides ids and padding
    # contracts that the part may break (core/inputs.py), each with the reason that `parts --verify` prints
    exceptions: ClassVar[Mapping[str, str]] = {}
    # parameters (by name within the part) that cannot affect the output, such as a key bias under softmax; a
    # subclass inherits them, so one in which they matter declares frozenset()
    inert: ClassVar[frozenset[str]] = frozenset()
    # texts of the part's box in a drawing: its title, then the inner boxes in the order of computation
    picture: ClassVar[tuple[str, ...]] = ()
    # options of a small instance for the contract checks, if they cannot be derived from name and type
    example: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Give every part a distinct Config, so that `config.part` is unambiguous.

        The Config inherits the options of the part's base classes, even if it only extends tfkit.Config.
        """
        super().__init_subclass__(**kwargs)
        own = vars(cls).get("Config")
        inherited = [base.Config for base in cls.__bases__ if issubclass(base, Component)]
        if own is None:
            names: dict[str, object] = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
            cls.Config = _joined(inherited, names | {"__doc__": inherited[0].__doc__})
        elif not (isinstance(own, type) and issubclass(own, Config)):
            raise TypeError(f"{cls.__qualname__}.Config must be a subclass of tfkit.Config, got {own!r}")
        elif not all(issubclass(own, config) for config in inherited):
            names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
            cls.Config = _joined([own, *inherited], names)
        cls.Config.part = cls

    @classmethod
    def able(cls, config: PartConfig | None = None) -> frozenset[str]:
        """Return the capabilities under `config`; if None, those that the part has under at least some options."""
        return cls.capabilities

    @classmethod
    def adopt(cls, slot: str, name: str) -> None:
        cls.part_slot, cls.part_name = slot, name


def _joined(configs: Sequence[type[Config]], names: dict[str, object]) -> type[Config]:
    bases = [one for one in configs if not any(issubclass(other, one) for other in configs if other != one)]
    return type("Config", tuple(dict.fromkeys(bases)), names)


__all__ = ["Component", "Config", "Doubt", "Problem", "Unlearnable", "spell", "with_nested"]
