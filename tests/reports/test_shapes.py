"""What `stand_in` says of an operation's result is what torch computes on `meta` itself."""

from __future__ import annotations

import pytest
import torch

from tfkit.reports.meter import stand_in

from ..sampling import looped

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CASES = [
    (aten.embedding.default, (meta(9, 4), meta(2, 3, dtype=torch.int64)), {}),
    (aten.arange.start, (2, 7), {"device": torch.device("meta")}),
    (aten.arange.default, (7,), {"device": torch.device("meta")}),
    (aten.arange.start_step, (0, 7, 2), {"device": torch.device("meta"), "dtype": torch.float64}),
    (aten.empty_like.default, (meta(2, 3),), {}),
    (aten.mm.default, (meta(2, 3), meta(3, 5)), {}),
    (aten.bmm.default, (meta(4, 2, 3), meta(4, 3, 5)), {}),
    (aten.addmm.default, (meta(5), meta(2, 3), meta(3, 5)), {}),
    (aten.masked_fill.Scalar, (meta(2, 3), meta(2, 1, dtype=torch.bool), 0.0), {}),
    (aten.cat.default, ([meta(2, 3), meta(2, 4)], -1), {}),
    (aten.stack.default, ([meta(2, 3), meta(2, 3)], -1), {}),
    (aten.mean.dim, (meta(2, 3, 4), [-1], True), {}),
    (aten.mean.dim, (meta(2, 3, 4), [0, 2]), {}),
    (aten.any.dim, (meta(2, 3, dtype=torch.bool), -1, True), {}),
    (aten._softmax.default, (meta(2, 3), -1, False), {}),
    (aten.native_layer_norm.default, (meta(2, 3, 4), [4], meta(4), meta(4), 1e-5), {}),
    (aten.add.Tensor, (meta(2, 1, 4), meta(3, 1)), {}),
    (aten.add.Tensor, (meta(2, dtype=torch.int64), meta(2, dtype=torch.int64)), {}),
    (aten.mul.Tensor, (meta(2, 3, dtype=torch.bfloat16), meta(2, 1, dtype=torch.bool)), {}),
    (aten.le.Tensor, (meta(2, 1, dtype=torch.int64), meta(3, dtype=torch.int64)), {}),
    (aten.gelu.default, (meta(2, 3),), {"approximate": "tanh"}),
    (aten.bitwise_and.Tensor, (meta(2, 1, dtype=torch.bool), meta(3, dtype=torch.bool)), {}),
]


@looped(("function", "args", "options"), CASES)
def test_equals_what_torch_computes(function, args, options):
    known, computed = stand_in(function, args, options), function(*args, **options)
    pairs = zip(known, computed, strict=True) if isinstance(computed, tuple) else [(known, computed)]
    for ours, theirs in pairs:
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (aten.exp.default, (meta(2, dtype=torch.int64),)),  # whole numbers become fractions
        (aten.add.Tensor, (meta(2), meta(2, dtype=torch.float64))),  # the wider type wins
        (aten.sort.default, (meta(2),)),
    ],
)
def test_leaves_what_it_does_not_know_to_torch(function, args):
    assert stand_in(function, args, {}) is None


def test_an_operation_in_place_gives_the_same_tensor():
    x = meta(2, 3)
    assert stand_in(aten.mul_.Tensor, (x, meta(3)), {}) is x
