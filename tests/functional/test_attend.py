"""The fast kernels of attention against the float32 reference and the plain steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tfkit.core.context import Span, Visibility
from tfkit.functional import attend as module
from tfkit.functional.attend import Scores, attend, reference
from tfkit.functional.dropout import Draws, drawing

from ..sampling import looped

ROWS, HEADS, DIM = 3, 12, 8


def states(heads: int, time: int, seed: int, dim: int = DIM) -> Tensor:
    return torch.randn(ROWS, heads, time, dim, generator=torch.Generator().manual_seed(seed))


@looped("kv_heads", [1, 3, 4, 6, 12])
@looped("keys", [1, 2, 19])
@looped("padded", [False, True])
@looped("biased", ["", "heads", "rows"])
def test_one_query_of_heads_that_share_keys(kv_heads: int, keys: int, padded: bool, biased: str) -> None:
    query, key, value = states(HEADS, 1, 1), states(kv_heads, keys, 2), states(kv_heads, keys, 3, 5)
    real = None if not padded else torch.arange(keys)[None] >= torch.tensor([[0], [1], [keys - 1]]).clamp(max=keys - 1)
    mask = Visibility((), Span(1, keys, keys - 1, torch.device("cpu")), real=real)
    generator = torch.Generator().manual_seed(4)
    bias = torch.randn(ROWS if biased == "rows" else 1, HEADS, 1, keys, generator=generator) if biased else None
    given, expected = (kernel(query, key, value, mask, Scores(0.35), bias) for kernel in (attend, reference))
    assert given.shape == (ROWS, HEADS, 1, 5)
    assert torch.allclose(given, expected[0], atol=1e-6)


def test_one_query_has_the_gradients_of_the_reference() -> None:
    made = [states(HEADS, 1, 1), states(3, 9, 2), states(3, 9, 3)]
    mask = Visibility((), Span(1, 9, 8, torch.device("cpu")))
    found = []
    for kernel in (attend, reference):
        leaves = [tensor.clone().requires_grad_() for tensor in made]
        out = kernel(*leaves, mask, Scores(0.35))
        out = out[0] if isinstance(out, tuple) else out
        found.append(torch.autograd.grad((out * states(HEADS, 1, 4)).sum(), leaves))
    assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(*found, strict=True))


# --- dropout in blocks of queries


SCORES = Scores(scale=0.4, dropout=0.25)


def results(
    inputs: list[Tensor], allowed: Tensor | None, is_causal: bool, draws: Draws, in_blocks: bool
) -> tuple[Tensor, ...]:
    """Output and gradients, [batch heads time dim] each."""
    with pytest.MonkeyPatch.context() as patch, drawing(draws):
        patch.setattr(module, "is_faster", lambda queries, is_causal: in_blocks)
        out = module._fused(*inputs, allowed, SCORES, is_causal)
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
        module._fused(*inputs, bias, SCORES).sum().backward()
    assert bias.grad is not None and bias.grad.abs().sum() > 0


def test_a_second_gradient_is_refused() -> None:
    inputs = [torch.randn(1, 1, 200, 4, requires_grad=True) for _ in range(3)]
    with drawing(Draws((3,))):
        out = module._fused(*inputs, None, SCORES, is_causal=True)
    first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()
