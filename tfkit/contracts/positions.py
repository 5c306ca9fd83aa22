"""Attention applies what a position provides: rotations, biases and temperatures."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.contracts.alone import TIME, Alone, built, states
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import SAME, Broken, describe, expect, expect_equal, far

HIDDEN = 1  # the key hidden by a bias
HOT = 2  # the query with a temperature


@contract(
    "with a rotary position, the output depends only on relative positions",
    "determinism",
    slots=("attention",),
    capability="rotation",
    every_option=True,
    once=True,
)
def check_rotation(case: Case) -> None:
    """Compare outputs with a rotary position, without it, with shifted positions, and with doubled positions."""
    alone, x, places = Alone(case), states(2, TIME), torch.arange(TIME)[None]
    rotary = built("position", "rotary", alone.shape)
    turned = alone(x, position=rotary)
    expect(far(turned, alone(x)) > SAME, "declares 'rotation', but a rotary position has no effect")
    shifted = "declares 'rotation', but the output does not depend only on relative positions: with all positions"
    expect_equal(alone(x, position=rotary, position_ids=places + 3), turned, f"{shifted} shifted by 3")
    apart = far(alone(x, position=rotary, position_ids=2 * places), turned)
    expect(apart > SAME, "declares 'rotation', but doubling all positions has no effect")
    _expect_bfloat16(case, rotary, "rotation")


def _expect_bfloat16(case: Case, position: Position, capability: str) -> None:
    """Raise Broken if the part fails with a float32 position and bfloat16 states."""
    alone, x = Alone(case, dtype=torch.bfloat16), states(2, TIME).bfloat16()
    try:
        result = alone(x, position=position).dtype
    except Exception as error:
        raise Broken(f"declares '{capability}', but in bfloat16 {describe(error, case.part)}") from error
    expect(result == torch.bfloat16, f"declares '{capability}', but converts bfloat16 to {result}")


class Hiding(Position):
    """A bias that effectively masks one key."""

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        hidden = -1e9 * (key_positions == HIDDEN).float()[:, None, None, :]
        return hidden.expand(-1, num_heads, query_positions.shape[1], -1)  # [batch heads query key]


@contract(
    "a position's bias is added to the scores",
    "determinism",
    slots=("attention",),
    capability="bias",
    every_option=True,
    once=True,
)
def check_bias(case: Case) -> None:
    """Check that an ALiBi position changes the output, and that a bias of -1e9 hides a key."""
    alone, x = Alone(case), states(2, TIME)
    sloped = alone(x, position=built("position", "alibi", alone.shape))
    expect(far(sloped, alone(x)) > SAME, "declares 'bias', but an ALiBi position has no effect")
    hiding = Hiding(Hiding.Config(), alone.shape)
    other = x.clone()
    other[:, HIDDEN] = states(2, 1, seed=2)[:, 0]
    rest = torch.arange(TIME) != HIDDEN
    moved = far(alone(other, position=hiding)[:, rest], alone(x, position=hiding)[:, rest])
    expect(moved <= SAME, f"declares 'bias', but a bias of -1e9 on token {HIDDEN} does not hide it")
    _expect_bfloat16(case, hiding, "bias")


class Warming(Position):
    """A position with a fixed temperature for each query."""

    factors: Tensor

    def temperature(self, positions: Tensor) -> Tensor:
        return self.factors[positions]


@contract(
    "a position's temperature multiplies the scores of its query",
    "determinism",
    slots=("attention",),
    capability="temperature",
    every_option=True,
    once=True,
)
def check_temperature(case: Case) -> None:
    """Check that a temperature affects only its query, and that temperature 0 makes all scores equal."""
    alone, x = Alone(case), states(2, TIME)
    plain, warming = alone(x), Warming(Warming.Config(), alone.shape)
    warming.factors = torch.ones(TIME, dtype=torch.float64)
    warming.factors[HOT] = 3.0
    warm = alone(x, position=warming)
    expect(far(warm[:, HOT], plain[:, HOT]) > SAME, "declares 'temperature', but a temperature has no effect")
    rest = torch.arange(TIME) != HOT
    moved = far(warm[:, rest], plain[:, rest])
    expect(moved <= SAME, f"declares 'temperature', but the temperature of query {HOT} changes the outputs of others")
    warming.factors = warming.factors.float()
    _expect_bfloat16(case, warming, "temperature")
    if case.declares("bidirectional"):
        warming.factors = torch.zeros(TIME, dtype=torch.float64)
        cold = Alone(case, both_ways=True)(x, position=warming)
        same = far(cold, cold[:, :1].expand_as(cold))
        expect(same <= SAME, "declares 'temperature', but a temperature of 0 does not make the scores of a query equal")
