"""Attention with linear biases."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.core.registry import register


def slopes(num_heads: int) -> list[float]:
    """The slope of each head: 2^(-8h/n) for h = 1..n where n is a power of two.

    Otherwise those of the power of two below, then every other one of the power above, as the authors' code does.
    """
    below = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-8 * head / below) for head in range(1, below + 1)]
    between = [2.0 ** (-4 * head / below) for head in range(1, 2 * below + 1, 2)]
    return first + between[: num_heads - below]


@register("position", "alibi")
class ALiBi(Position):
    """scores - slope_h * |query position - key position| (Press et al. 2021, arXiv 2108.12409)."""

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        distance = (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs()
        slope = torch.tensor(slopes(num_heads), dtype=torch.float32, device=query_positions.device)
        return -rearrange(slope, "head -> 1 head 1 1") * distance
