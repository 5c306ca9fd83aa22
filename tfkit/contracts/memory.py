"""Cross-attention reads the whole memory, and observed attention weights are correct."""

from __future__ import annotations

import torch

from tfkit.contracts.alone import TIME, Alone, states
from tfkit.contracts.cases import MIXING, Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import EQUAL, SAME, expect, expect_equal

MEMORY, WIDTH = 4, 10  # length of the memory, and its width, which differs from d_model


@contract(
    "cross-attention reads every token of a memory with a different length and width",
    "determinism",
    slots=("attention",),
    capability="cross_attention",
    every_option=True,
    once=True,
)
def check_cross_attention(case: Case) -> None:
    """Change the tokens of the memory one at a time: every output must change."""
    alone, x, memory = Alone(case, memory_width=WIDTH), states(2, TIME), states(2, MEMORY, WIDTH, seed=3)
    before = alone(x, memory=memory)
    expect(
        before.shape == x.shape,
        f"with a memory of {MEMORY} tokens, the output has shape {list(before.shape)}, not {list(x.shape)}",
    )
    for token in range(MEMORY):
        other = memory.clone()
        other[:, token] = states(2, 1, WIDTH, seed=4)[:, 0]
        moved = (alone(x, memory=other) - before).abs().amax(dim=-1)
        expect(
            bool((moved > SAME).all()),
            f"declares 'cross_attention', but an output does not depend on token {token} of the memory",
        )


@contract(
    "observed attention weights sum to 1 over the visible tokens",
    "determinism",
    slots=MIXING,
    capability="weights",
    every_option=True,
    once=True,
)
def check_weights(case: Case) -> None:
    """Check that weights sum to 1 (to 0 for fully masked rows), and that observing them has no effect."""
    alone, x = Alone(case), states(2, TIME)
    real = torch.ones(2, TIME, dtype=torch.bool)
    if case.declares("padding"):
        real[0, -1], real[1] = False, False
    context = alone.context(x, attention_mask=real, observe={"attention"})
    with torch.no_grad():
        watched = alone.part(x, context)
    expect_equal(watched, alone(x, attention_mask=real), "declares 'weights', but observing changes the output")
    seen = context.collector.observed.get("attention", [])
    expect(len(seen) == 1, f"declares 'weights', but an observer of 'attention' receives {len(seen) or 'no'} tensors")
    weights = seen[0]
    expected = [2, *weights.shape[1:2], TIME, TIME]
    expect(
        list(weights.shape) == expected,
        f"declares 'weights', but their shape is {list(weights.shape)}, not [batch heads query key] = {expected}",
    )
    ones = torch.ones(TIME, TIME, dtype=torch.bool)
    visible = (ones.tril() if alone.shape.causal else ones) & real[:, None, :]  # [rows query key]
    hidden = weights.masked_select(~visible[:, None].expand_as(weights))
    expect(bool((hidden == 0).all()), "declares 'weights', but masked tokens have non-zero weights")
    expect(bool((weights >= 0).all()), "declares 'weights', but some are negative or NaN")
    total = weights.double().sum(dim=-1)
    off = total - visible.any(dim=-1).double()[:, None]
    off = off if case.variant else off.abs()  # with an option such as an attention sink, the sum may be less than 1
    expect(float(off.max()) <= EQUAL, f"declares 'weights', but the sum of a row is off by {float(off.max()):.1e}")
