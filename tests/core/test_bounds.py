"""Every count has a largest value: options of parts and sections, keys of the model, and the command line's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import click
import pytest
from pydantic import BaseModel, Field, ValidationError

from tfkit.cli.main import main
from tfkit.cli.options import Whole
from tfkit.core.bounds import BOUNDS
from tfkit.core.component import Config
from tfkit.core.describe import kinds, kinds_of
from tfkit.core.errors import Place
from tfkit.core.keys import SizeValue
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.keys import GROUPS
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.source import from_value
from tfkit.studies.settings import Study

from ..sampling import looped

PARTS = [
    (f"{slot} {name}", part.Config)
    for slot in CATALOGUES
    for name, part in REGISTRY.load(slot).items()
    if part.__module__.startswith("tfkit.")
]
SECTIONS = [(kind.__name__, kind) for kind in (Data, Train, Generate, Study)]


def counts(annotations: Any) -> Iterator[tuple[Any, ...]]:
    """The marks of every whole number in the types of an option, those in lists and sections too."""
    for kind in annotations:
        if kind.annotation is int:
            yield kind.marks
        elif isinstance(kind.annotation, type) and issubclass(kind.annotation, BaseModel):
            for field in kind.annotation.model_fields.values():
                yield from counts(kinds(field))
        elif get_origin(kind.annotation) in (tuple, list, dict):
            for inner in get_args(kind.annotation):
                yield from counts(kinds_of(inner))


def unbounded(model: type[BaseModel]) -> list[str]:
    """The options that may be any whole number."""
    fields = model.model_fields.items()
    return [
        name
        for name, field in fields
        for marks in counts(kinds(field))
        if not any(getattr(mark, "le", getattr(mark, "lt", None)) is not None for mark in marks)
    ]


@looped(("name", "model"), [*PARTS, *SECTIONS])
def test_every_count_of_a_part_and_a_section_has_a_bound(name: str, model: type[BaseModel]) -> None:
    assert unbounded(model) == [], name


def test_a_count_without_a_bound_is_found() -> None:
    class Careless(BaseModel):
        many: tuple[int, ...] | None = None
        few: bool = False

    class Section(BaseModel):
        inner: Careless | None = None
        size: int = 3

    assert unbounded(Section) == ["inner", "size"]


def test_a_count_of_an_own_part_has_the_bound_of_counts() -> None:
    class Own(Config):
        many: tuple[int, ...] | None = None
        few: Annotated[int, Field(ge=0, lt=5)] = 1
        size: int = 3
        rates: list[int | float] = []
        named: dict[str, int] = {}

    assert unbounded(Own) == [] and Own().size == 3
    assert Own(many=(1, 2**31), size=2**31, rates=[0.5]).few == 1
    for wrong in ({"size": 2**31 + 1}, {"many": (1, 10**30)}, {"few": 5}, {"named": {"a": 10**30}}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            Own(**wrong)
    assert Own.model_json_schema()["properties"]["size"]["maximum"] == 2**31


def test_a_list_of_a_recipe_is_a_tuple_and_options_can_be_compared() -> None:
    class Own(Config):
        pair: tuple[int, str] = (1, "a")
        many: tuple[tuple[float, ...], ...] | None = None
        sizes: list[int] = []
        named: dict[str, list[int]] = {}

    given: dict[str, Any] = {"pair": [2, "b"], "many": [[0.5], []], "sizes": [1], "named": {"a": [1]}}
    own = Own.model_validate(given)
    assert (own.pair, own.many, own.sizes) == ((2, "b"), ((0.5,), ()), [1])
    assert {own, Own(pair=(2, "b"), many=((0.5,), ()), sizes=[1], named={"a": [1]})} == {own}
    for wrong in ([2], "ab", [2, 3], {2: "b"}):
        with pytest.raises(ValidationError, match="pair") as caught:
            Own.model_validate({"pair": wrong})
        faults = Faults()
        faults.invalid(from_value({"pair": wrong}, Place("x"), "")[0], caught.value, Own)
        assert "needs the option" not in str(faults.errors[0])


def test_every_size_of_a_model_has_a_bound_of_the_table() -> None:
    sizes = [key.kind for group in GROUPS.values() for key in group.values() if isinstance(key.kind, SizeValue)]
    assert sizes
    assert {kind.limit for kind in sizes} <= {bound.most for bound in BOUNDS}


def commands(group: click.Command) -> Iterator[click.Command]:
    """All commands."""
    if isinstance(group, click.Group):
        for name in group.list_commands(click.Context(group)):
            found = group.get_command(click.Context(group), name)
            assert found is not None
            yield from commands(found)
    else:
        yield group


def test_every_count_of_the_command_line_has_a_bound() -> None:
    types = [option.type for command in commands(main) for option in command.params]
    kinds_found = [getattr(kind, "one", kind) for kind in types]
    assert not [kind for kind in kinds_found if isinstance(kind, (click.types.IntParamType, click.IntRange))]
    limits = {kind.bound for kind in kinds_found if isinstance(kind, Whole)}
    assert limits and limits <= set(BOUNDS)
