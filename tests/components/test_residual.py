"""Residual layouts against their equations, with sublayers and norms that can be told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tfkit.components.residual import Branch, BranchNorm, DeepNorm, Sandwich
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.registry import REGISTRY

from ..sampling import looped

NAMES = ("attention", "feedforward")
PLACES = torch.arange(2)[None]
CONTEXT = Context(Visibility((), Span(2, 2, 0, torch.device("cpu"))), Placement((), PLACES, PLACES))


class Affine(nn.Module):
    """x -> a x² + b."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        return self.a * x * x + self.b


F, G = Affine(0.5, 0.1), Affine(-0.3, 0.7)  # the sublayers
D = Affine(0.9, -0.2)  # what stands for dropout
NORMS = {
    "norm": Affine(0.4, 0.3),
    "attention_norm": Affine(0.2, 0.6),
    "feedforward_norm": Affine(-0.1, 0.5),
    "attention_output_norm": Affine(0.7, 0.2),
    "feedforward_output_norm": Affine(0.3, -0.4),
}
A, M = NORMS["attention_norm"], NORMS["feedforward_norm"]


def post_norm(x: Tensor) -> Tensor:
    x = A(x + D(F(x)))
    return M(x + D(G(x)))


def pre_norm(x: Tensor) -> Tensor:
    x = x + D(F(A(x)))
    return x + D(G(M(x)))


def sandwich(x: Tensor) -> Tensor:
    x = x + NORMS["attention_output_norm"](D(F(A(x))))
    return x + NORMS["feedforward_output_norm"](D(G(M(x))))


def branch_norm(x: Tensor) -> Tensor:
    x = x + A(D(F(x)))
    return x + M(D(G(x)))


def parallel(x: Tensor) -> Tensor:
    n = NORMS["norm"](x)
    return x + D(F(n)) + D(G(n))


def parallel_two_norms(x: Tensor) -> Tensor:
    return x + D(F(A(x))) + D(G(M(x)))


def deep_norm(x: Tensor) -> Tensor:
    x = A(3 * x + D(F(x)))
    return M(3 * x + D(G(x)))


def plain(x: Tensor) -> Tensor:
    return D(G(D(F(x))))


EQUATIONS = [plain, post_norm, pre_norm, sandwich, branch_norm, parallel, parallel_two_norms, deep_norm]


@looped("equation", EQUATIONS)
def test_equals_the_equation(equation: Callable[[Tensor], Tensor]) -> None:
    part = REGISTRY.get("residual", equation.__name__)
    config = part.Config.model_validate({"alpha": 3.0} if part is DeepNorm else {})
    names = part.norm_names(NAMES)  # type: ignore[attr-defined]
    norms = {name: NORMS[name] for name in names}
    branches = [Branch(name, f, CONTEXT, D, norms) for name, f in zip(NAMES, (F, G), strict=True)]
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(config.build(Shape(4))(x, iter(branches)), equation(x))


def test_the_table_of_equations_is_whole() -> None:
    parts: list[Any] = [REGISTRY.get("residual", name) for name in REGISTRY.names("residual")]
    ordinary = {part.part_name for part in parts if part.Config().num_streams() is None}  # tests/models/test_streams.py
    assert {equation.__name__ for equation in EQUATIONS} == ordinary


def test_norms_by_name_and_whose_they_are() -> None:
    def names(layout: str) -> dict[str, str | None]:
        return REGISTRY.get("residual", layout).norm_names(NAMES)  # type: ignore[attr-defined,no-any-return]

    assert names("pre_norm") == {"attention_norm": "attention", "feedforward_norm": "feedforward"}
    assert names("parallel") == {"norm": None}
    assert set(names("sandwich")) == {f"{name}_{kind}" for name in NAMES for kind in ("norm", "output_norm")}
    assert names("sandwich")["feedforward_output_norm"] == "feedforward"


@looped(
    ("shape", "alpha", "beta"),
    [
        (Shape(4, side="encoder", depth=8), 2.0, 64**-0.25),
        (Shape(4, side="decoder", depth=8), 2.0, 64**-0.25),
        (Shape(4, side="encoder", depth=6, other_depth=3), 0.81 * 3888 ** (1 / 16), 0.87 * 3888 ** (-1 / 16)),
        (Shape(4, side="decoder", depth=27, other_depth=6), 3.0, 324**-0.25),
    ],
)
def test_deep_norm_takes_its_constants_from_the_depths(shape: Shape, alpha: float, beta: float) -> None:
    config = DeepNorm.Config()
    assert DeepNorm(config, shape).alpha == pytest.approx(alpha)
    assert DeepNorm.init_gain(config, shape) == pytest.approx(beta)


def test_deep_norm_s_constants_can_be_said() -> None:
    config = DeepNorm.Config(alpha=1.5, beta=0.25)
    assert DeepNorm(config, Shape(4, depth=9)).alpha == 1.5
    assert DeepNorm.init_gain(config, Shape(4, depth=9)) == 0.25


@pytest.mark.parametrize("part", [Sandwich, BranchNorm])
def test_a_scale_follows_the_norm_of_what_a_sublayer_gives(part: type) -> None:
    x = torch.randn(3, dtype=torch.float64)
    added = []
    for scale in (1.0, 0.25):
        branch = Branch("attention", F, CONTEXT, D, NORMS, scale)
        added.append(part(part.Config(), Shape(3))(x, [branch]) - x)
    torch.testing.assert_close(added[1], 0.25 * added[0])
