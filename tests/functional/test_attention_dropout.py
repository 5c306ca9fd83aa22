"""Attention with dropout in blocks of queries is the plain steps: outputs, gradients and draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tfkit.functional import attend
from tfkit.functional.dropout import Draws, drawing

from ..sampling import looped

SCORES = attend.Scores(scale=0.4, dropout=0.25)


def results(
    inputs: list[Tensor], allowed: Tensor | None, is_causal: bool, draws: Draws, in_blocks: bool
) -> tuple[Tensor, ...]:
    """Output and gradients, [batch heads time dim] each."""
    with pytest.MonkeyPatch.context() as patch, drawing(draws):
        patch.setattr(attend, "is_faster", lambda queries, is_causal: in_blocks)
        out = attend._fused(*inputs, allowed, SCORES, is_causal)
    torch.manual_seed(1)
    return out.detach(), *torch.autograd.grad(out, inputs, torch.randn_like(out))


def allowed_of(kind: str, batch: int, heads: int, query: int, key: int) -> Tensor | None:
    sees = torch.rand(batch, 1, query, key) > 0.3
    sees[..., 0] = True
    return {
        "all": None,
        "causal": None,
        "mask": sees,
        "padding": sees[:, :, :1],
        "shared mask": sees[:1],
        "bias": torch.randn(1, heads, query, key),
        "bias and mask": torch.randn(1, heads, query, key).masked_fill(~sees, float("-inf")),
    }[kind]


@pytest.mark.full
@looped("kind", ["all", "causal", "mask", "padding", "shared mask", "bias", "bias and mask"])
@looped(("query", "key", "kv_heads"), [(150, 150, 4), (64, 64, 2), (131, 77, 1), (3, 5, 4)])
def test_blocks_are_the_plain_steps(kind: str, query: int, key: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, heads, time, 8, requires_grad=True) for heads, time in ((4, query), (kv_heads, key))]
    inputs.append(torch.randn(2, kv_heads, key, 6, requires_grad=True))
    allowed = allowed_of(kind, 2, 4, query, key)
    plain, blocks = (results(inputs, allowed, kind == "causal", Draws((3,)), way) for way in (False, True))
    for one, other in zip(plain, blocks, strict=True):
        torch.testing.assert_close(other, one, rtol=2e-5, atol=2e-5)


def test_a_piece_of_a_batch_draws_its_rows() -> None:
    inputs = [torch.randn(4, 2, 70, 8, requires_grad=True) for _ in range(3)]
    whole = results(inputs, None, True, Draws((3,), rows=4), True)[0]
    rows = [x.detach()[1:3].requires_grad_() for x in inputs]
    piece = results(rows, None, True, Draws((3,), row=1, rows=2), True)[0]
    torch.testing.assert_close(piece, whole[1:3])


def test_a_learned_bias_gets_its_gradient() -> None:
    inputs = [torch.randn(1, 1, 200, 4, requires_grad=True) for _ in range(3)]
    bias = torch.randn(1, 1, 200, 200, requires_grad=True)
    with drawing(Draws((3,))):
        attend._fused(*inputs, bias, SCORES).sum().backward()
    assert bias.grad is not None and bias.grad.abs().sum() > 0


def test_a_second_gradient_is_refused() -> None:
    inputs = [torch.randn(1, 1, 200, 4, requires_grad=True) for _ in range(3)]
    with drawing(Draws((3,))):
        out = attend._fused(*inputs, None, SCORES, is_causal=True)
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()
