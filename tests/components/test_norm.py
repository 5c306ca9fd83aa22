"""Norms against their formulas, written out in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from tfkit.components.norm import LayerNorm, RMSNorm
from tfkit.core.component import Shape
from tfkit.core.errors import UsageError

from ..sampling import looped

WIDTH = 12


def naive(x: Tensor, eps: float, center: bool) -> Tensor:
    """Row by row, element by element."""
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]):
        mean = sum(row.tolist()) / len(row) if center else 0.0
        spread = sum((v - mean) ** 2 for v in row.tolist()) / len(row)
        rows.append([(v - mean) / (spread + eps) ** 0.5 for v in row.tolist()])
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


@looped("offset", [0.0, 1.0, -0.5])
@looped(("part", "center"), [(LayerNorm, True), (RMSNorm, False)])
def test_equals_the_formula(part: type, center: bool, offset: float) -> None:
    norm = part(part.Config(eps=1e-3, weight_offset=offset, bias=True), Shape(WIDTH)).double()
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64) * 2 + 1
    expected = (offset + norm.weight) * naive(x, 1e-3, center) + norm.bias
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


@looped("affine", [True, False])
@looped(("part", "center"), [(LayerNorm, True), (RMSNorm, False)])
def test_groups_of_channels_are_normed_by_themselves(part: type, center: bool, affine: bool) -> None:
    norm = part(part.Config(eps=1e-3, group_size=4, bias=True, affine=affine, weight_offset=0.5), Shape(WIDTH))
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, WIDTH) * 2 + 1
    expected = torch.cat([naive(group, 1e-3, center) for group in x.split(4, dim=-1)], dim=-1)
    if affine:
        expected = (0.5 + norm.weight.double()) * expected + norm.bias.double()
    torch.testing.assert_close(norm(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [LayerNorm, RMSNorm])
def test_groups_that_do_not_divide_the_width_are_refused(part: type) -> None:
    config = part.Config(group_size=5)
    assert [problem.option for problem in config.check(Shape(WIDTH))] == ["group_size"]
    with pytest.raises(UsageError, match="groups of 5 channels do not divide the width 12"):
        part(config, Shape(WIDTH))(torch.randn(1, WIDTH))


@looped("part", [LayerNorm, RMSNorm])
@looped("offset", [0.0, 1.0])
def test_begins_neutral(part: type, offset: float) -> None:
    norm = part(part.Config(weight_offset=offset), Shape(WIDTH))
    plain = part(part.Config(affine=False), Shape(WIDTH))
    x = torch.randn(2, WIDTH)
    torch.testing.assert_close(norm(x), plain(x))
    assert torch.equal(norm.weight, torch.full((WIDTH,), 1 - offset))


@looped("part", [LayerNorm, RMSNorm])
@looped("offset", [0.0, 1.0])
def test_half_precision_loses_no_more_than_the_result_s_rounding(part: type, offset: float) -> None:
    norm = part(part.Config(weight_offset=offset, bias=True), Shape(WIDTH))
    with torch.no_grad():
        norm.weight.add_(torch.randn(WIDTH) * 0.1)
    norm = norm.bfloat16()
    x = (torch.randn(64, WIDTH) * 3).bfloat16()
    exact = copy.deepcopy(norm).double()(x.double())
    out = norm(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, exact.bfloat16(), rtol=2**-7, atol=1e-6)


def test_parameters_are_those_the_options_say() -> None:
    def names(norm: torch.nn.Module) -> list[str]:
        return [name for name, _ in norm.named_parameters()]

    assert names(LayerNorm(LayerNorm.Config(), Shape(4))) == ["weight", "bias"]
    assert names(LayerNorm(LayerNorm.Config(bias=False), Shape(4))) == ["weight"]
    assert names(LayerNorm(LayerNorm.Config(affine=False), Shape(4))) == []
    assert names(RMSNorm(RMSNorm.Config(), Shape(4))) == ["weight"]
