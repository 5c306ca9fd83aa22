"""Differential attention against its formula, pair by pair in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tfkit.components.attention import Differential
from tfkit.components.attention.differential import VECTORS
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility

SHAPE = Shape(d_model=16, layer=2)


def part(num_kv_heads: int = 4) -> Differential:
    torch.manual_seed(3)
    config = Differential.Config(num_heads=4, num_kv_heads=num_kv_heads, head_dim=6, lambda_std=0.5)
    return Differential(config, SHAPE).double().eval()


def call(module: Differential, x: Tensor) -> Tensor:
    length = x.shape[1]
    position = torch.arange(length)[None]
    span = Span(length, length, 0, torch.device("cpu"))
    out: Tensor = module(x, Context(Visibility((), span), Placement((), position, position)))
    return out


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@torch.no_grad()
def test_equals_the_formula(num_kv_heads: int) -> None:
    module, x = part(num_kv_heads=num_kv_heads), torch.randn(1, 5, 16, dtype=torch.float64)
    start = 0.8 - 0.6 * math.exp(-0.3 * 2)
    first, one, second, two = (module.get_parameter(name) for name in VECTORS)
    scale = (first @ one).exp() - (second @ two).exp() + start
    query, key, value = (linear(x)[0].unflatten(-1, (-1, 6)) for linear in (module.query, module.key, module.value))
    pairs, group = [], 4 // num_kv_heads
    for pair in range(2):
        maps = []
        for head in (pair, pair + 2):
            scores = query[:, head] @ key[:, head // group].T / math.sqrt(6)
            maps.append(torch.softmax(scores, dim=-1))
        half = pair // group  # of the value heads: the first half is paired with the second
        values = torch.cat((value[:, half], value[:, half + num_kv_heads // 2]), dim=-1)
        out = (maps[0] - scale * maps[1]) @ values
        pairs.append(out / (out.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * (1 - start))
    torch.testing.assert_close(call(module, x)[0], module.output(torch.cat(pairs, dim=-1)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "option"), [(3, 3, "num_heads"), (4, 1, "num_kv_heads")])
def test_heads_that_make_no_pairs_are_problems(num_heads: int, num_kv_heads: int, option: str) -> None:
    config = Differential.Config(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=6)
    assert [problem.option for problem in config.check(SHAPE)] == [option]
