"""The fast kernels against the float32 reference, where a step of decoding takes a way of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.core.context import Span, Visibility
from tfkit.functional.attend import Scores, attend, reference

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
