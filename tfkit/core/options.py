"""The types that options are written with; each refuses what a recipe cannot mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tfkit.core import bounds
from tfkit.core.component import Config, Problem, Slot
from tfkit.core.shape import Shape

# Counts, each with the bound of its kind (core/bounds.py).
Width = Annotated[int, Field(ge=1, le=bounds.WIDTH.most)]
Heads = Annotated[int, Field(ge=1, le=bounds.HEADS.most)]
ExpertCount = Annotated[int, Field(ge=1, le=bounds.EXPERTS.most)]
PositiveInt = Annotated[int, Field(ge=1, le=bounds.COUNT.most)]
NonNegativeInt = Annotated[int, Field(ge=0, le=bounds.COUNT.most)]
Seed = Annotated[int, Field(ge=0, le=bounds.SEED.most)]
RowCount = Annotated[int, Field(ge=1, le=bounds.ROWS.most)]
TextCount = Annotated[int, Field(ge=1, le=bounds.TEXTS.most)]
Drawn = Annotated[int, Field(ge=1, le=bounds.DRAWN.most)]
Order = Annotated[int, Field(ge=1, le=bounds.ORDER.most)]


def _in_float32(value: float) -> float:
    if abs(value) > 1e18:
        raise ValueError(f"expected a number whose square float32 holds, up to 1e18, got {value:g}")
    return value


Number = Annotated[float, AfterValidator(_in_float32)]
PositiveFloat = Annotated[float, Field(gt=0), AfterValidator(_in_float32)]
NonNegativeFloat = Annotated[float, Field(ge=0), AfterValidator(_in_float32)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
# `labels`: as many as the training corpus has labels, known once it is read (as `vocab_size: tokenizer` is)
Classes = Width | Literal["labels"]


def class_count(classes: int | str) -> int:
    """The number that a `Classes` option stands for; 1 while the labels are not known."""
    return 1 if isinstance(classes, str) else classes


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("expected a number other than 0")
    return value


# R19: no arithmetic, only the two roots that papers use.
Scale = Annotated[Number, AfterValidator(_not_zero)] | Literal["sqrt_d_model", "1/sqrt_d_model"] | None


def scale_factor(scale: float | str | None, d_model: int) -> float:
    """The number that a `Scale` option stands for."""
    if scale is None:
        return 1.0
    if isinstance(scale, str):
        return math.sqrt(d_model) if scale == "sqrt_d_model" else 1 / math.sqrt(d_model)
    return float(scale)


def as_tuple(value: Any) -> Any:
    """A list as a recipe writes it, as the tuple that a frozen Config holds."""
    return tuple(value) if isinstance(value, list) else value


# R18: `bias: true | false | [projection names]`
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
Bias = bool | Names


def has_bias(bias: bool | tuple[str, ...], projection: str) -> bool:
    """Whether that projection has a bias."""
    return bias if isinstance(bias, bool) else projection in bias


def check_bias(bias: bool | tuple[str, ...], projections: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What a `Bias` option names that is no projection of its part."""
    for name in () if isinstance(bias, bool) else bias:
        if name not in projections:
            yield "bias", f"'{name}' is no projection here; there are: {', '.join(projections)}"


def check_norm(option: str, norm: Config | None, width: int) -> Iterator[Problem]:
    """What cannot fit where a part has a norm of that width inside: `option` is the part's option that gives it."""
    for problem in () if norm is None else norm.check(Shape(width)):
        yield problem._replace(option=f"{option}.{problem.option}" if problem.option else option)


Activation = Annotated[Config, Slot("activation")]
Norm = Annotated[Config, Slot("norm")]


@dataclass(frozen=True)
class PathMark:
    """Marks an option as a path, relative to the recipe's file: of a file, of a folder, or of the folder of a run."""

    run: bool = False
    folder: bool = False  # of data


RecipePath = Annotated[str, PathMark()]
DataFolder = Annotated[str, PathMark(folder=True)]
RunPath = Annotated[str, PathMark(run=True)]
