"""What a mask shows when keys that nobody can see any more are forgotten."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tfkit.core.component import Shape
from tfkit.core.context import Span, Visibility, looks_back
from tfkit.core.inputs import Inputs
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import MaskFacts

from ..sampling import looped

CPU = torch.device("cpu")


def rules(*said: dict[str, Any] | str) -> list[MaskFacts]:
    """The rules of a causal layer."""
    made: list[MaskFacts] = []
    for rule in ("causal", *said):
        options = {"type": rule} if isinstance(rule, str) else dict(rule)
        part = REGISTRY.get("mask", options.pop("type"))
        made.append(part.Config.model_validate(options).build(Shape(4, causal=True)))
    return made


WINDOW, CHUNK = {"type": "window", "size": 4}, {"type": "chunk", "size": 3}
EVERY_OTHER = {"type": "dilated", "dilation": 2}


@looped(
    ("said", "before"),
    [
        ((), None),
        ((WINDOW,), 3),
        ((CHUNK,), 2),
        ((EVERY_OTHER,), None),
        ((EVERY_OTHER, WINDOW), 3),
        ((WINDOW, CHUNK), 2),
        (({"type": "window", "before": 0},), 0),
        ((WINDOW, "prefix"), None),  # an opening shows what a limit hides
    ],
)
def test_how_far_a_query_looks_back_is_known_beforehand(said: tuple[Any, ...], before: int | None) -> None:
    assert looks_back(rules(*said)) == before


@looped("said", [(WINDOW,), (CHUNK,), (WINDOW, CHUNK), (WINDOW, EVERY_OTHER)])
@looped("facts", ["plain", "padding", "segments"])
@looped("queries", [1, 3])
def test_a_mask_without_the_forgotten_keys_is_the_rest_of_the_whole_one(
    said: tuple[Any, ...], facts: str, queries: int
) -> None:
    made, length = rules(*said), 11
    past = length - queries
    real, segments = None, None
    if facts == "padding":
        real = torch.arange(length)[None] >= torch.tensor([[0], [4], [9]])
    if facts == "segments":
        of_all = torch.tensor([[0] * 5 + [1] * 6, [0] * 10 + [1]])
        segments = of_all[:, past:], of_all
    before = looks_back(made)
    assert before is not None

    def dense(first: int) -> Tensor:
        mask = Visibility(made, Span(queries, length, past, CPU, first), Inputs(), real, segments).dense()
        return torch.ones(1, queries, length - first, dtype=torch.bool) if mask is None else mask

    whole = dense(0)
    assert not whole[..., : past - before].any()
    assert torch.equal(dense(past - before).expand(whole.shape[0], -1, -1), whole[..., past - before :])


def test_nothing_is_hidden_from_the_last_token_once_all_else_is_forgotten() -> None:
    window = rules(WINDOW)
    assert Visibility(window, Span(1, 9, 8, CPU, first=5)).is_full
    assert Visibility(window, Span(1, 3, 2, CPU)).is_full  # the text is not longer than the window
    assert not Visibility(window, Span(1, 9, 8, CPU, first=4)).is_full
    assert not Visibility(window, Span(2, 10, 8, CPU, first=5)).is_full
    assert not Visibility(rules(CHUNK), Span(1, 9, 8, CPU, first=6)).is_full
    assert not Visibility(window, Span(1, 9, 8, CPU, first=5), real=torch.ones(1, 9, dtype=torch.bool)).is_full
