"""Attention with linear biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from einops import rearrange, repeat
from pydantic import Field
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.core.component import Problem
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.core.shape import Shape


def slopes(num_heads: int, between: str = "below") -> list[float]:
    """The slope of each head: 2^(-8h/n) for h = 1..n where n is a power of two.

    Otherwise those of the power of two below, then every other one of the power above, as the authors' code does; or,
    with `between` "above", every other one of the power above, from the second on, and then the rest.
    """
    below = 1 << (num_heads.bit_length() - 1)
    if between == "above" and below != num_heads:
        all_above = _powers(2 * below)
        return (all_above[1::2] + all_above[::2])[:num_heads]
    return _powers(below) + _powers(2 * below)[::2][: num_heads - below]


def _powers(count: int) -> list[float]:
    return [2.0 ** (-8 * head / count) for head in range(1, count + 1)]


@register("position", "alibi")
class ALiBi(Position):
    """scores - slope_h * |query position - key position| (Press et al. 2021, arXiv 2108.12409)."""

    class Config(Position.Config):
        between: Literal["below", "above"] = Field(
            "below",
            description="slopes of heads that are no power of two: those of the power below first (BLOOM); above: "
            "those of the power above alone (MPT)",
        )
        scale: PositiveFloat = Field(1.0, description="factor on all slopes (Falcon: 1 / sqrt(head_dim))")
        bfloat16: bool = Field(
            False,
            description="slope times the key's position, in bfloat16, in place of the distance; causal (Falcon)",
        )

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.bfloat16 and not shape.causal:
                yield Problem(
                    "bfloat16", "the later a key the nearer it counts; that needs a stack that hides the future"
                )

    config: Config

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        slope = torch.tensor(slopes(num_heads, self.config.between), dtype=self.dtype, device=query_positions.device)
        slope = rearrange(slope, "head -> 1 head 1 1")
        query, key = query_positions[:, None, :, None], key_positions[:, None, None, :]
        if self.config.bfloat16:
            # softmax takes no notice of what all keys of a query have in common
            of_keys = (slope.bfloat16() * key).to(self.dtype) * self.config.scale
            return repeat(of_keys, "batch head 1 key -> batch head query key", query=query.shape[2])
        return -self.config.scale * slope * (query - key).abs()
