"""The fused projection and loss equal torch's own, in value and in every gradient, in chunks and in half precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from tfkit.functional import loss as module
from tfkit.functional.loss import cross_entropy, linear_cross_entropy


def tensors(rows: int = 37, width: int = 8, vocab: int = 11, bias: bool = True):
    torch.manual_seed(0)
    features = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(vocab, width, requires_grad=True)
    extra = torch.randn(vocab, requires_grad=True) if bias else None
    return features, weight, extra, torch.randint(0, vocab, (rows,))


def test_tensors_without_values_are_one_chunk(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1)
    multiplied = []
    product = module.product
    monkeypatch.setattr(module, "product", lambda *given: multiplied.append(given) or product(*given))
    with FakeTensorMode():
        features, weight = (torch.empty(size, requires_grad=True) for size in ((37, 8), (11, 8)))
        loss = linear_cross_entropy(features, weight, None, torch.zeros(37, dtype=torch.long))
    assert len(multiplied) == 1 and loss.shape == () and loss.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [11 * 5, 1 << 22])
def test_equals_the_two_steps(monkeypatch, smoothing, bias, chunk):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    features, weight, extra, targets = tensors(bias=bias)
    given = [tensor for tensor in (features, weight, extra) if tensor is not None]
    ours = linear_cross_entropy(features, weight, extra, targets, smoothing)
    theirs = F.cross_entropy(F.linear(features, weight, extra), targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(torch.autograd.grad(ours * 0.3, given), torch.autograd.grad(theirs * 0.3, given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_frozen_table_gets_no_gradient():
    features, weight, extra, targets = tensors()
    weight.requires_grad_(False)
    linear_cross_entropy(features, weight, extra, targets).backward()
    assert weight.grad is None and features.grad is not None and extra.grad is not None


@pytest.mark.parametrize("inner", [torch.float32, torch.bfloat16])
def test_under_autocast_it_stays_near_the_full_precision(inner):
    features, weight, extra, targets = tensors()
    exact = torch.autograd.grad(linear_cross_entropy(features, weight, extra, targets), (features, weight, extra))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = linear_cross_entropy(features.to(inner), weight, extra, targets)
    rough = torch.autograd.grad(total, (features, weight, extra))
    assert total.dtype == torch.float32
    for a, b in zip(rough, exact, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.1)


def test_without_gradients_and_with_nothing_to_predict():
    features, weight, extra, targets = tensors()
    with torch.no_grad():
        torch.testing.assert_close(
            linear_cross_entropy(features, weight, extra, targets, 0.1),
            cross_entropy(F.linear(features, weight, extra), targets, 0.1),
        )
    assert linear_cross_entropy(features[:0], weight, extra, targets[:0]).item() == 0
