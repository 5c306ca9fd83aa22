"""Feed-forward sublayers against loops in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.components.feedforward import MLP, GatedLinearUnit
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.registry import REGISTRY

from ..sampling import looped

SHAPE = Shape(d_model=3)


def context() -> Context:
    places = torch.arange(2)[None]
    return Context(Visibility((), Span(2, 2, 0, torch.device("cpu"))), Placement((), places, places))


def build(name: str, **options: Any) -> Any:
    part = REGISTRY.get("feedforward", name)
    return part.Config.model_validate({"d_ff": 4, **options}).build(SHAPE).double().eval()


def linear(weight: Tensor, bias: Tensor | None, x: list[float]) -> list[float]:
    rows = weight.tolist()
    offsets = [0.0] * len(rows) if bias is None else bias.tolist()
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(rows, offsets, strict=True)]


def test_mlp_equals_the_formula() -> None:
    part = build("mlp")
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    for row, out in zip(x.reshape(-1, 3), part(x, context()).reshape(-1, 3), strict=True):
        inner = [max(0.0, v) for v in linear(part.up.weight, part.up.bias, row.tolist())]
        expected = linear(part.down.weight, part.down.bias, inner)
        torch.testing.assert_close(out.tolist(), expected)


def test_glu_equals_the_formula() -> None:
    part = build("glu", activation="relu", bias=["gate"])
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    for row, out in zip(x.reshape(-1, 3), part(x, context()).reshape(-1, 3), strict=True):
        gate = [max(0.0, v) for v in linear(part.gate.weight, part.gate.bias, row.tolist())]
        up = linear(part.up.weight, None, row.tolist())
        expected = linear(part.down.weight, None, [g * u for g, u in zip(gate, up, strict=True)])
        torch.testing.assert_close(out.tolist(), expected)


@pytest.mark.parametrize("name", ["mlp", "glu"])
def test_inner_values_are_normed_before_down(name: str) -> None:
    part, plain = build(name, inner_norm={"type": "rms_norm", "eps": 1e-3}), build(name)
    plain.load_state_dict(part.state_dict(), strict=False)
    torch.nn.init.normal_(part.inner_norm.weight)
    seen: list[torch.Tensor] = []
    plain.down.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    plain(x, context())
    normed = part.inner_norm.weight * seen[0] / (seen[0].square().mean(dim=-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(part(x, context()), part.down(normed))


@looped(
    ("name", "bias", "expected"),
    [
        ("mlp", True, {"up", "down"}),
        ("mlp", False, set()),
        ("mlp", ["down"], {"down"}),
        ("glu", True, {"gate", "up", "down"}),
        ("glu", ["gate", "up"], {"gate", "up"}),
    ],
)
def test_biases_are_those_named(name: str, bias: Any, expected: set[str]) -> None:
    part = build(name, bias=bias)
    assert {key.removesuffix(".bias") for key in part.state_dict() if key.endswith(".bias")} == expected


def test_a_bias_that_is_no_projection_is_a_problem() -> None:
    problems = list(MLP.Config(d_ff=4, bias=("gate",)).check(SHAPE))
    assert [problem.option for problem in problems] == ["bias"]
    assert "'gate'" in problems[0].message and "up, down" in problems[0].message
    assert not list(GatedLinearUnit.Config(d_ff=4, bias=("gate",)).check(SHAPE))


def test_the_activation_sees_the_inner_width() -> None:
    part = build("mlp", activation={"type": "prelu", "per_channel": True})
    assert part.activation.weight.shape == (4,)
