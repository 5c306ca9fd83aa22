"""Mask rules, drawn as small matrices: rows ask, columns are looked at, 1 = may look."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tfkit.components.mask import GlobalTokens, Prefix, Window
from tfkit.core.component import Shape
from tfkit.core.context import Span, Visibility
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.registry import REGISTRY

from ..sampling import looped

CAUSAL, BOTH_WAYS = Shape(4, causal=True), Shape(4, side="encoder")


def drawn(text: str) -> list[list[bool]]:
    return [[mark == "1" for mark in line.split()] for line in text.strip().splitlines()]


def rule(name: str, shape: Shape = BOTH_WAYS, **options: Any) -> Any:
    config = REGISTRY.get("mask", name).Config.model_validate(options)
    assert not list(config.check(shape))
    return config.build(shape)


def dense(rules: list[Any], queries: int = 5, past: int = 0, **inputs: Any) -> Any:
    keys = past + queries
    visibility = Visibility(rules, Span(queries, keys, past, torch.device("cpu")), Inputs(**inputs))
    mask = visibility.dense()
    assert mask is not None and mask.dtype == torch.bool
    return mask.expand(-1, queries, keys).tolist()


TRIANGLE = """
1 . . . .
1 1 . . .
1 1 1 . .
1 1 1 1 .
1 1 1 1 1
"""
PICTURES = {
    "last three": (CAUSAL, "window", {"size": 3}, "1 . . . .\n1 1 . . .\n1 1 1 . .\n. 1 1 1 .\n. . 1 1 1"),
    "itself": (CAUSAL, "window", {"size": 1}, "1 . . . .\n. 1 . . .\n. . 1 . .\n. . . 1 .\n. . . . 1"),
    "one a side": (BOTH_WAYS, "window", {"size": 2}, "1 1 . . .\n1 1 1 . .\n. 1 1 1 .\n. . 1 1 1\n. . . 1 1"),
    "odd": (BOTH_WAYS, "window", {"size": 3}, "1 1 . . .\n1 1 1 . .\n. 1 1 1 .\n. . 1 1 1\n. . . 1 1"),
    "itself, both ways": (BOTH_WAYS, "window", {"size": 1}, "1 . . . .\n. 1 . . .\n. . 1 . .\n. . . 1 .\n. . . . 1"),
    "uneven": (BOTH_WAYS, "window", {"before": 2, "after": 1}, "1 1 . . .\n1 1 1 . .\n1 1 1 1 .\n. 1 1 1 1\n. . 1 1 1"),
    "no end before": (BOTH_WAYS, "window", {"after": 1}, "1 1 . . .\n1 1 1 . .\n1 1 1 1 .\n1 1 1 1 1\n1 1 1 1 1"),
    "no end after": (BOTH_WAYS, "window", {"before": 0}, "1 1 1 1 1\n. 1 1 1 1\n. . 1 1 1\n. . . 1 1\n. . . . 1"),
    "before, causal": (CAUSAL, "window", {"before": 1}, "1 . . . .\n1 1 . . .\n. 1 1 . .\n. . 1 1 .\n. . . 1 1"),
    "chunk, causal": (CAUSAL, "chunk", {"size": 2}, "1 . . . .\n1 1 . . .\n. . 1 . .\n. . 1 1 .\n. . . . 1"),
    "chunk, both ways": (BOTH_WAYS, "chunk", {"size": 2}, "1 1 . . .\n1 1 . . .\n. . 1 1 .\n. . 1 1 .\n. . . . 1"),
    "chunk longer than the text": (CAUSAL, "chunk", {"size": 9}, TRIANGLE),
    "dilated": (CAUSAL, "dilated", {"dilation": 2}, "1 . . . .\n. 1 . . .\n1 . 1 . .\n. 1 . 1 .\n1 . 1 . 1"),
}


def test_reverse_causal() -> None:
    assert dense([rule("reverse_causal")])[0] == [list(row) for row in zip(*drawn(TRIANGLE), strict=True)]


@looped("case", sorted(PICTURES))
def test_a_rule_and_one_query_after_a_past_see_what_is_drawn(case: str) -> None:
    shape, name, options, picture = PICTURES[case]
    rules = [rule("causal")] * shape.causal + [rule(name, shape, **options)]
    assert dense(rules)[0] == drawn(picture)
    if shape.causal:
        assert dense(rules, queries=1, past=4)[0] == drawn(picture)[4:]


def test_prefix_is_read_both_ways() -> None:
    rules = [rule("causal"), rule("prefix")]
    first, second = dense(rules, prefix_length=torch.tensor([3, 0]))
    assert first == drawn("1 1 1 . .\n1 1 1 . .\n1 1 1 . .\n1 1 1 1 .\n1 1 1 1 1")
    assert second == drawn(TRIANGLE)


def test_global_tokens_see_all_and_are_seen_by_all() -> None:
    rules = [rule("window", size=2), rule("global_tokens")]
    marks = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
    first, second = dense(rules, global_attention_mask=marks)
    assert first == drawn("1 1 1 1 1\n1 1 1 . .\n1 1 1 1 .\n1 . 1 1 1\n1 . . 1 1")
    assert second == drawn("1 1 . 1 .\n1 1 1 1 .\n. 1 1 1 .\n1 1 1 1 1\n. . . 1 1")


@pytest.mark.parametrize(("part", "name"), [(Prefix, "prefix_length"), (GlobalTokens, "global_attention_mask")])
def test_a_missing_input_is_named(part: Any, name: str) -> None:
    assert part.needs == {name} and part.opens
    with pytest.raises(UsageError, match=name):
        dense([rule("causal"), part.Config().build(BOTH_WAYS)])


@looped(
    ("options", "shape", "option"),
    [
        ({}, BOTH_WAYS, "size"),
        ({"size": 4, "before": 2}, BOTH_WAYS, "size"),
        ({"size": 4, "after": 0}, CAUSAL, "size"),
        ({"before": 1, "after": 1}, CAUSAL, "after"),
    ],
)
def test_a_window_is_said_once(options: dict[str, int], shape: Shape, option: str) -> None:
    problems = list(Window.Config(**options).check(shape))
    assert [problem.option for problem in problems] == [option]


@looped("options", [{"size": 0}, {"size": -1}, {"before": -1}, {"size": 2.5}])
def test_no_window_of_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Window.Config.model_validate(options)


def test_global_tokens_would_show_the_future() -> None:
    assert list(GlobalTokens.Config().check(CAUSAL)) and not list(GlobalTokens.Config().check(BOTH_WAYS))


def test_chunks_count_from_the_first_real_token_and_in_each_segment() -> None:
    span = Span(5, 5, 0, torch.device("cpu"))
    real = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
    left, right = Visibility([rule("chunk", size=2)], span, real=real).dense().tolist()  # type: ignore[union-attr]
    assert left[1:] == drawn(". 1 1 . .\n. 1 1 . .\n. . . 1 1\n. . . 1 1")
    assert right[:4] == drawn("1 1 . . .\n1 1 . . .\n. . 1 1 .\n. . 1 1 .")
    segments = torch.tensor([[1, 2, 2, 2, 3]])
    (packed,) = Visibility([rule("chunk", size=2)], span, segments=(segments, segments)).dense().tolist()  # type: ignore[union-attr]
    assert packed == drawn("1 . . . .\n. 1 1 . .\n. 1 1 . .\n. . . 1 .\n. . . . 1")


def test_dilated_in_a_window() -> None:
    rules = [rule("window", size=4), rule("dilated", dilation=2)]
    assert dense(rules)[0] == drawn("1 . 1 . .\n. 1 . 1 .\n1 . 1 . 1\n. 1 . 1 .\n. . 1 . 1")
