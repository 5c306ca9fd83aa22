"""Dropout: active only in training, and without effect on the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.contracts.calls import fresh, run, tokens
from tfkit.contracts.cases import SUBLAYERS, Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import SAME, expect, expect_equal, far
from tfkit.models.base import Model

RATE = 0.25
ROWS = 1500  # number of copies of a row, to estimate the mean


@contract(
    "dropout is active in training, preserves the mean, and has no effect in eval mode",
    "determinism",
    when=lambda case: "dropout" in case.part.Config.model_fields,
)
@torch.no_grad()
def check_dropout(case: Case) -> None:
    """Compare the part with and without its `dropout` option."""
    dropping = case.with_(dropout=RATE)
    made = fresh(dropping)
    ids = tokens(2, 6)
    for name, value in run(dropping, ids).items():
        expect_equal(value, run(case, ids)[name], f"{name} in eval mode, with dropout instead of without", SAME)
    made.train()
    first, second = run(dropping, ids, on=made), run(dropping, ids, on=made)
    drops = any(far(first[name], second[name]) > 0 for name in first)
    expect(drops, f"with dropout: {RATE}, two calls in training mode return equal outputs")
    if case.slot in (*SUBLAYERS, "embedding"):
        _keeps_the_mean(dropping, made, ids[:1])


def _keeps_the_mean(case: Case, made: Model, ids: Tensor) -> None:
    """Check that the mean output with dropout, over many copies of a row, equals the output without dropout."""
    part = next(module for module in made.modules() if isinstance(module, case.part))
    seen: list[Tensor] = []
    hook = part.register_forward_hook(lambda module, arguments, out: seen.append(out))
    many = ids.expand(ROWS, -1)  # [ROWS time]
    run(case, many, on=made)
    made.eval()
    run(case, ids, on=made)
    hook.remove()
    dropped, want = seen[0], seen[-1][0]
    error = dropped.std(dim=0) / many.shape[0] ** 0.5
    allowed = 6 * error + 0.1 * want.pow(2).mean().sqrt()
    off = (dropped.mean(dim=0) - want).abs()
    expect(
        bool((off <= allowed).all()),
        f"the mean with dropout is off by {float(off.max()):.2f}; the largest output is {float(want.abs().max()):.2f}",
    )
