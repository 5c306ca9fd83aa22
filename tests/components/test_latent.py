"""Latent attention against loops over heads, queries and keys in float64; from a cache by either of its two ways."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.components.attention import Latent
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.recipe.load import load_recipe

from ..models.small import small
from ..sampling import looped

WIDTH, ROWS, TIME = 10, 2, 7
SHAPE = Shape(WIDTH, causal=True)
SIZES = {"num_heads": 3, "kv_rank": 5, "head_dim": 4, "rotary_head_dim": 2, "value_head_dim": 6}
THETA, EPS = 50.0, 1e-6
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}  # positions turn in float32


def build(**options: Any) -> Any:
    config = Slot("attention").validate({"type": "latent", **SIZES, **options})
    assert not list(config.check(SHAPE))
    part = config.build(SHAPE).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in part.parameters():
            value.copy_(torch.randn(value.shape, generator=generator).double())
    return part


def context(keys: int, past: int = 0, state: Any = None, scaling: Any = None) -> Context:
    rotary = {"type": "rotary", "theta": THETA, "layout": "interleaved", "scaling": scaling}
    position = Slot("position").validate(rotary).build(SHAPE)
    causal = Slot("mask").validate("causal").build(SHAPE)
    places = torch.arange(keys)[None]
    placement = Placement((position,), places[:, past:], places)
    return Context(Visibility((causal,), Span(keys - past, keys, past, torch.device("cpu"))), placement, state)


def inputs() -> Tensor:
    return torch.randn(ROWS, TIME, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def turned(pair: Tensor, place: int) -> Tensor:
    """One pair of channels turned by its position: the part that turns has no more."""
    a, b = pair.tolist()
    cosine, sine = math.cos(place), math.sin(place)
    return torch.tensor([a * cosine - b * sine, b * cosine + a * sine], dtype=torch.float64)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean() + EPS)


def naive(part: Latent, x: Tensor, query_factor: float = 1.0, latent_factor: float = 1.0) -> Tensor:
    """The formulas of the paper, one head, one query and one key at a time."""
    w = {name: weight.detach() for name, weight in part.named_parameters()}
    linear = lambda name, v: w[f"{name}.weight"] @ v + w.get(f"{name}.bias", 0)  # noqa: E731
    out = torch.zeros_like(x)
    for row in range(ROWS):
        latents, rotary_keys = [], []
        for time in range(TIME):
            down = linear("key_value_down", x[row, time])
            latents.append(latent_factor * normed(down[:5], w["key_value_norm.weight"]))
            rotary_keys.append(turned(down[5:], time))
        for time in range(TIME):
            if "query_down.weight" in w:
                narrow = normed(linear("query_down", x[row, time]), w["query_norm.weight"])
                queries = query_factor * linear("query_up", narrow)
            else:
                queries = query_factor * linear("query", x[row, time])
            merged = []
            for head in range(3):
                query = queries[head * 6 : head * 6 + 6]
                up = w["key_value_up.weight"][head * 10 : head * 10 + 10]
                scores = [
                    (query[:4] @ (up[:4] @ latents[key]) + turned(query[4:], time) @ rotary_keys[key]) / math.sqrt(6)
                    for key in range(time + 1)
                ]
                weights = torch.softmax(torch.stack(scores), dim=0)
                merged.append(sum(weights[key] * (up[4:] @ latents[key]) for key in range(time + 1)))
            out[row, time] = linear("output", torch.cat(merged))
    return out


@pytest.mark.parametrize("options", [{}, {"query_rank": 8}, {"query_rank": 8, "bias": ["query_down"]}], ids=str)
def test_latent_attention_equals_the_formulas(options: dict[str, Any]) -> None:
    part = build(**options)
    torch.testing.assert_close(part(inputs(), context(TIME)), naive(part, inputs()), **CLOSE)


def test_ranks_may_be_scaled() -> None:
    part = build(query_rank=8, scaled_ranks=True, bias=False)
    expected = naive(part, inputs(), (WIDTH / 8) ** 0.5, (WIDTH / 5) ** 0.5)
    torch.testing.assert_close(part(inputs(), context(TIME)), expected, **CLOSE)


@pytest.mark.parametrize("sizes", [[1] * TIME, [4, 1, 2], [6, 1]], ids=str)
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize(
    "scaling", [None, {"type": "dynamic", "factor": 4.0, "original_length": 3}], ids=["", "dynamic"]
)
def test_a_cache_gives_the_same_by_either_way(
    sizes: list[int], narrow: bool, scaling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, x = build(query_rank=8, rotary_head_dim=4), inputs()
    monkeypatch.setattr(part, "_saves", lambda queries: narrow)
    state, past = part.new_state(), 0
    for size in sizes:
        end = past + size
        found = part(x[:, past:end], context(end, past, state, scaling))
        # where theta grows with the text, the past turns otherwise at each length
        torch.testing.assert_close(found, part(x[:, :end], context(end, 0, None, scaling))[:, past:], **CLOSE)
        past = end


def test_the_cache_keeps_the_latent_and_one_rotary_key() -> None:
    part = build()
    state = part.new_state()
    part(inputs(), context(TIME, 0, state))
    assert state.bytes() == ROWS * TIME * (5 + 2) * 8


def test_few_queries_take_the_narrow_way_and_many_the_wide_one() -> None:
    part = build(kv_rank=64)
    wide = 4 + 6
    assert part._saves(1) and not part._saves(64 * wide)


@looped(
    ("options", "said"),
    [
        ({"bias": ["key"]}, "'key' is not a projection"),
        ({"bias": ["query_down"]}, "there is no query_down projection without query_rank; remove it"),
        ({"bias": ["query"], "query_rank": 4}, "there is no query projection with query_rank; remove it"),
        ({"rotary_head_dim": 3}, "must be even and at least 2, got 3"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load_recipe(small({"attention": {"type": "latent", **SIZES, **options}}, position="rotary")).blueprint()
