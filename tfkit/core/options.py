"""Option types with their validation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tfkit.core import bounds
from tfkit.core.component import Config, Problem, Shape, Side, spell
from tfkit.core.component import NonNegativeFloat as NonNegativeFloat
from tfkit.core.component import Number as Number
from tfkit.core.component import PositiveFloat as PositiveFloat
from tfkit.core.errors import on_one_line, with_article
from tfkit.core.registry import REGISTRY, UnknownPart

# integers with the bounds of core/bounds.py
Width = Annotated[int, Field(ge=1, le=bounds.WIDTH.most)]
Vocabulary = Annotated[int, Field(ge=1, le=bounds.VOCABULARY.most)]
Heads = Annotated[int, Field(ge=1, le=bounds.HEADS.most)]
ExpertCount = Annotated[int, Field(ge=1, le=bounds.EXPERTS.most)]
PositiveInt = Annotated[int, Field(ge=1, le=bounds.COUNT.most)]
NonNegativeInt = Annotated[int, Field(ge=0, le=bounds.COUNT.most)]
Seed = Annotated[int, Field(ge=0, le=bounds.SEED.most)]
RowCount = Annotated[int, Field(ge=1, le=bounds.ROWS.most)]
TextCount = Annotated[int, Field(ge=1, le=bounds.TEXTS.most)]
Drawn = Annotated[int, Field(ge=1, le=bounds.DRAWN.most)]
Order = Annotated[int, Field(ge=1, le=bounds.ORDER.most)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
# `labels`: the number of labels in the training corpus, known once it is read (like `vocab_size: tokenizer`)
Classes = Width | Literal["labels"]


def class_count(classes: int | str) -> int:
    """Return the number for a `Classes` option; 1 while the labels are unknown."""
    return 1 if isinstance(classes, str) else classes


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("expected a number other than 0")
    return value


# rule R19 of the recipe language: no arithmetic, only the two square roots used in papers
Scale = Annotated[Number, AfterValidator(_not_zero)] | Literal["sqrt_d_model", "1/sqrt_d_model"] | None


def scale_factor(scale: float | str | None, d_model: int) -> float:
    """Return the number for a `Scale` option."""
    if scale is None:
        return 1.0
    if isinstance(scale, str):
        return math.sqrt(d_model) if scale == "sqrt_d_model" else 1 / math.sqrt(d_model)
    return float(scale)


def as_tuple(value: object) -> object:
    """Convert a recipe's list to the tuple stored in a frozen Config."""
    return tuple(value) if isinstance(value, list) else value


# rule R18 of the recipe language: `bias: true | false | [projection names]`
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
Bias = bool | Names


def has_bias(bias: bool | tuple[str, ...], projection: str) -> bool:
    """True if `projection` has a bias."""
    return bias if isinstance(bias, bool) else projection in bias


def check_bias(bias: bool | tuple[str, ...], projections: tuple[str, ...]) -> Iterator[Problem]:
    """Yield names in a `Bias` option that are not projections of the part."""
    for name in () if isinstance(bias, bool) else bias:
        if name not in projections:
            yield Problem("bias", f"'{name}' is not a projection of this part; available: {', '.join(projections)}")


def check_norm(option: str, norm: Config | None, width: int) -> Iterator[Problem]:
    """Yield the problems of a nested norm of width `width`; `option` is the part's option that holds the norm."""
    for problem in () if norm is None else norm.check(Shape(width)):
        yield problem._replace(option=f"{option}.{problem.option}" if problem.option else option)


@dataclass(frozen=True)
class Slot:
    """Annotation of a field that holds a part of `slot`: `Annotated[Config, Slot("attention")]`.

    Accepts a name, a mapping with `type`, or a Config of the slot. Errors inside the part keep their path in the
    recipe, because Pydantic prepends the field's location to a ValidationError raised by a validator.
    """

    slot: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(spell)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {"x-slot": self.slot}

    def validate(self, value: object) -> Config:
        """Return the Config described by `value`. Raise ValidationError or ValueError if it is invalid."""
        if isinstance(value, Config):
            if value.part.part_slot != self.slot:
                name, slot = value.part.part_name, value.part.part_slot
                raise ValueError(f"'{name}' is {with_article(slot)}, expected {with_article(self.slot)}")
            return value
        if isinstance(value, str):
            return self._config(value, {}, loc=())
        if isinstance(value, Mapping):
            options = dict(value)
            name = options.pop("type", None)
            if isinstance(name, str):
                return self._config(name, options, loc=("type",))
            message = "expected a name"
            if name is None:
                message = f"type is missing; available {self.slot} types: {', '.join(REGISTRY.names(self.slot))}"
            raise _located(("type",) * (name is not None), PydanticCustomError("part_type", message), value)
        got = "none" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
        got = got if len(got) <= 60 else f"{got[:57]}..."
        raise ValueError(f"expected the name of {with_article(self.slot)}, or a mapping with its type, got {got}")

    def _config(self, name: str, options: dict[str, object], loc: tuple[str, ...]) -> Config:
        try:
            part = REGISTRY.get(self.slot, name)
        except UnknownPart as error:
            context = {"slot": self.slot, "name": on_one_line(name, 60), "suggestion": error.suggestion}
            context["known"] = ", ".join(error.known)
            message = "unknown {slot} '{name}'"
            if not error.suggestion:
                message += " (available: {known})" if error.known else " (no part is registered)"
            if error.note:
                context["note"] = error.note
                message += "{note}"
            raise _located(loc, PydanticCustomError("unknown_part", message, context), name) from None
        return part.Config.model_validate(options)


def _located(loc: tuple[str, ...], error: PydanticCustomError, value: object) -> ValidationError:
    return ValidationError.from_exception_data("part", [{"type": error, "loc": loc, "input": value}])


def part_option(default: object, description: str) -> Any:
    """Declare an option that holds a part, with a default in recipe notation, such as its name."""
    return Field(default, description=description)


Activation = Annotated[Config, Slot("activation")]
Norm = Annotated[Config, Slot("norm")]


@dataclass(frozen=True)
class PathMark:
    """Annotation of an option that is a path relative to the recipe's file; `of` is the kind of target."""

    of: Literal["file", "run folder", "folder"] = "file"


RecipePath = Annotated[str, PathMark()]
RunPath = Annotated[str, PathMark("run folder")]
FolderPath = Annotated[str, PathMark("folder")]


class LayerPair(NamedTuple):
    """A layer of a stack, its counterpart in another model, and the path of the pair in a `Layers` option."""

    side: Side
    own: int
    other: int
    at: str


def _layers(value: object) -> Any:
    sides = ("encoder", "decoder")
    if isinstance(value, Mapping) and value and all(key in sides for key in value):
        return {side: _numbers(pairs) for side, pairs in value.items()}
    return {} if value is None else _numbers(value)


def _numbers(value: object) -> dict[str, int]:
    form = "{layer of this model: layer of the other}, such as {0: 0, 1: 2}"
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping of layer numbers, {form}, got {value!r:.60}")
    for own, other in value.items():
        if not own.isdecimal() or type(other) is not int or other < 0:
            raise ValueError(f"expected a mapping of layer numbers from 0, {form}, got {own}: {other!r:.60}")
    return dict(value)


# {layer of this model: layer of another}; with two stacks {encoder: {...}, decoder: {...}}
Layers = Annotated[dict[str, NonNegativeInt | dict[str, NonNegativeInt]], BeforeValidator(_layers)]


def layer_pairs(layers: Mapping[str, Any], last: Side) -> Iterator[LayerPair]:
    """Yield the pairs of a `Layers` option; pairs without a side belong to the stack `last`."""
    for key, value in layers.items():
        if isinstance(value, Mapping):
            side: Side = "encoder" if key == "encoder" else "decoder"
            yield from (LayerPair(side, int(own), other, f".{key}.{own}") for own, other in value.items())
        else:
            yield LayerPair(last, int(key), value, f".{key}")


_DURATION = re.compile(r"(?:(\d+) ?d)? ?(?:(\d+) ?h)? ?(?:(\d+) ?min)? ?(?:(\d+) ?s)?")
_UNITS = (86_400, 3_600, 60, 1)


def seconds_of(written: str) -> int:
    """Parse a duration such as 8 h, 1 h 30 min or 90 s to seconds; raise ValueError for other text."""
    found = _DURATION.fullmatch(written)
    seconds = 0 if found is None else sum(int(n or 0) * unit for n, unit in zip(found.groups(), _UNITS, strict=True))
    if not 0 < seconds <= bounds.COUNT.most:
        raise ValueError(f"{written!r} is not a duration; write 8 h, 1 h 30 min or 90 s")
    return seconds


def _duration(written: str) -> str:
    seconds_of(written)
    return written


Duration = Annotated[str, AfterValidator(_duration)]

DEVICES = "auto, cpu, cuda or cuda:1"
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
# torch devices that tfkit does not support, with the reasons
_REFUSED_DEVICES = {
    "mps": "it does not support float64, which positions, random draws and gradient norms require",
    "xpu": "it is untested, and runs could not be resumed exactly",
    "meta": "tensors on it have no values",
}


def check_device_name(name: str) -> str:
    """Return the name. Raise ValueError for unknown or unsupported devices."""
    if _DEVICE.fullmatch(name):
        return name
    reason = _REFUSED_DEVICES.get(name.partition(":")[0])
    if reason is not None:
        raise ValueError(f"tfkit does not support {name}: {reason}; use {DEVICES}")
    raise ValueError(f"unknown device {name!r}; use {DEVICES}")


DeviceName = Annotated[str, AfterValidator(check_device_name)]
