"""Activations against their formulas, in plain Python."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tfkit.components.activation import TORCH_ACTIVATIONS, PReLU
from tfkit.core.component import Shape
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY

from ..sampling import looped

REQUIRED = {"threshold": {"threshold": 0.1, "value": -2.0}}
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "relu": lambda x: max(0.0, x),
    "relu6": lambda x: min(max(0.0, x), 6.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu_squared": lambda x: max(0.0, x) ** 2,
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * math.expm1(x)),
    "celu": lambda x: max(0.0, x) + min(0.0, math.expm1(x)),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "prelu": lambda x: x if x > 0 else 0.25 * x,
    "rrelu": lambda x: x if x > 0 else (1 / 8 + 1 / 3) / 2 * x,
    "threshold": lambda x: x if x > 0.1 else -2.0,
    "sigmoid": sigmoid,
    "logsigmoid": lambda x: math.log(sigmoid(x)),
    "tanh": math.tanh,
    "tanhshrink": lambda x: x - math.tanh(x),
    "softsign": lambda x: x / (1 + abs(x)),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "softshrink": lambda x: math.copysign(max(0.0, abs(x) - 0.5), x),
    "hardshrink": lambda x: x if abs(x) > 0.5 else 0.0,
    "hardsigmoid": lambda x: min(max(0.0, x + 3), 6.0) / 6,
    "hardswish": lambda x: x * min(max(0.0, x + 3), 6.0) / 6,
    "hardtanh": lambda x: min(max(-1.0, x), 1.0),
    "xielu": lambda x: 0.5 * x + 0.8 * (x * x if x > 0 else math.expm1(min(x, -1e-6)) - x),
}


def build(name: str, **options: object) -> nn.Module:
    config = Slot("activation").validate({"type": name, **REQUIRED.get(name, {}), **options})
    part: nn.Module = config.build(Shape(5))
    return part.eval()


def test_there_is_a_formula_for_every_activation() -> None:
    assert set(FORMULAS) == set(REGISTRY.names("activation"))


@looped("name", sorted(FORMULAS))
def test_equals_the_formula(name: str) -> None:
    x = torch.tensor([-8.0, -3.0, -1.0, -0.5, -0.3, 0.0, 0.2, 0.5, 1.0, 2.5, 7.0], dtype=torch.float64)
    expected = torch.tensor([FORMULAS[name](v) for v in x.tolist()], dtype=torch.float64)
    part = build(name)
    error = 1e-7 if list(part.parameters()) else 1e-9  # what is learned is stored in float32
    torch.testing.assert_close(part.double()(x), expected, rtol=error, atol=error)


@looped("name", sorted(FORMULAS))
def test_survives_pickling_and_copying(name: str) -> None:
    part, x = build(name), torch.randn(2, 5)
    for twin in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert torch.equal(twin(x), part(x))


def test_all_elementwise_activations_of_torch_are_there() -> None:
    no_elements = {"GLU", "MultiheadAttention", "Softmin", "Softmax", "Softmax2d", "LogSoftmax"}
    theirs = {name.lower() for name in nn.modules.activation.__all__ if name not in no_elements}
    ours = {name.replace("_", "") for name in REGISTRY.names("activation")}
    assert theirs - ours == set()


@looped("name", sorted(TORCH_ACTIVATIONS))
def test_defaults_are_torch_s(name: str) -> None:
    modules = {m.lower(): getattr(nn, m) for m in nn.modules.activation.__all__}
    module = modules.get(name.replace("_", ""))
    if module is None:
        return
    theirs = inspect.signature(module).parameters
    for option, field in TORCH_ACTIVATIONS[name].Config.model_fields.items():
        default = theirs[option].default
        assert field.is_required() if default is inspect.Parameter.empty else field.default == default


def test_options_reach_the_function() -> None:
    x = torch.tensor([-2.0, 0.3, 4.0])
    assert torch.equal(build("hardtanh", min_val=-0.5, max_val=3)(x), torch.tensor([-0.5, 0.3, 3.0]))
    torch.testing.assert_close(build("elu", alpha=2)(x)[0].item(), 2 * math.expm1(-2))
    torch.testing.assert_close(build("celu", alpha=2)(x)[0].item(), 2 * math.expm1(-1))


@looped(
    ("name", "options"),
    [
        ("relu", {"inplace": True}),
        ("celu", {"alpha": 0}),
        ("softshrink", {"lambd": -1}),
        ("hardtanh", {"min_val": 2}),
        ("rrelu", {"lower": 0.5}),
        ("softplus", {"beta": 0}),
    ],
)
def test_refuses_options_that_torch_would_trip_over(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Slot("activation").validate({"type": name, **options})


def test_threshold_must_be_said() -> None:
    with pytest.raises(ValidationError, match="threshold"):
        Slot("activation").validate("threshold")


def test_prelu_learns_one_slope_or_one_a_channel() -> None:
    assert PReLU(PReLU.Config(), Shape(5)).weight.shape == (1,)
    part = PReLU(PReLU.Config(per_channel=True, init=0.5), Shape(5))
    with torch.no_grad():
        part.weight.copy_(torch.arange(5.0))
    out = part(-torch.ones(2, 3, 5))
    assert torch.equal(out[1, 2], -torch.arange(5.0))
    out.sum().backward()
    assert part.weight.grad is not None
