"""The types of options in words: what a reader may write, without a word of Python."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from tfkit.core.component import Config
from tfkit.core.describe import in_words, limits, sections
from tfkit.core.errors import with_article
from tfkit.core.options import Bias, Dropout, NonNegativeInt, PositiveInt, RecipePath, Scale, Slot, Width
from tfkit.core.registry import CATALOGUES, REGISTRY

from ..sampling import looped


class Linear(BaseModel):
    type: Literal["linear"]
    factor: float


class Dynamic(BaseModel):
    type: Literal["dynamic"]
    alpha: float


def field(annotation: Any) -> Any:
    return create_model("Options", option=(annotation, ...)).model_fields["option"]


@looped(
    ("annotation", "words"),
    [
        (bool, "true or false"),
        (bool | None, "true, false, or none"),
        (int, "whole number"),
        (PositiveInt, "whole number from 1"),
        (Width | None, "whole number from 1, or none"),
        (NonNegativeInt, "whole number from 0"),
        (Annotated[int, Field(gt=2, le=2000)], "whole number above 2, at most 2,000"),
        (Annotated[int, Field(lt=3)], "whole number below 3"),
        (Dropout, "number from 0, below 1"),
        (Annotated[float, Field(ge=0, le=1)], "number from 0 to 1"),
        (Annotated[float, Field(le=0)], "number at most 0"),
        (Annotated[float, Field(gt=0.5)] | None, "number above 0.5, or none"),
        (Scale, "number, sqrt_d_model, 1/sqrt_d_model, or none"),
        (Literal["first", "mean"], "one of first, mean"),
        (Literal["linear"], "linear"),
        (Literal["a", "b"] | None, "a, b, or none"),
        (Bias, "true, false, or list of texts"),
        (str, "text"),
        (Annotated[str, Field(min_length=1, max_length=1)], "text of 1 letter"),
        (Annotated[str, Field(max_length=8)], "text of at most 8 letters"),
        (RecipePath, "path"),
        (tuple[RecipePath, ...], "list of paths"),
        (tuple[Dropout, Dropout], "list of 2 numbers from 0, below 1"),
        (tuple[int | str, ...], "list of whole numbers or texts"),
        (list, "list"),
        (dict[str, str | NonNegativeInt], "mapping of names to texts or whole numbers from 0"),
        (dict[str, Any], "mapping of names to any value"),
        (Linear | None, "mapping of type, factor, or none"),
        (Annotated[Config, Slot("norm")] | None, "a norm (true, a name, or options), or none"),
        (Annotated[Config, Slot("activation")], "an activation (a name, or options)"),
        (tuple[Annotated[Config, Slot("position")], ...], "list of positions (a name, or options)"),
    ],
)
def test_a_type_in_words(annotation: Any, words: str) -> None:
    assert in_words(field(annotation)) == words


def test_limits_are_exact_where_words_leave_them_out() -> None:
    assert limits(field(Width | None)) == {"ge": 1, "le": 2**28}
    assert limits(field(Dropout)) == {"ge": 0, "lt": 1}
    assert limits(field(Annotated[dict[str, str], Field(min_length=1)])) == {"min_length": 1}
    assert limits(field(bool)) == {}


def test_sections_are_mappings_that_are_no_parts() -> None:
    assert sections(field(Linear | Dynamic | None)) == [Linear, Dynamic]
    assert sections(field(Annotated[Config, Slot("norm")] | None)) == []


@looped("slot", CATALOGUES)
def test_the_words_of_every_registered_option_are_of_the_recipe_language(slot: str) -> None:
    for part in REGISTRY.load(slot).values():
        for about in part.Config.model_fields.values():
            words = in_words(about)
            python = r"\b(int|str|float|bool|tuple|dict|None|NoneType|Annotated|typing|Config)\b"
            assert not re.search(python, words), (part, words)


@looped(("noun", "words"), [("int64", "an int64"), ("Embedding", "an Embedding"), ("str", "a str")])
def test_a_noun_has_its_article(noun: str, words: str) -> None:
    assert with_article(noun) == words
