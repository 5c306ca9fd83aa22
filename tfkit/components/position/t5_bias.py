"""The relative position bias of T5."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.position.base import Position
from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.options import PositiveInt, Width
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("position", "t5_bias")
class T5Bias(Position):
    """scores + table[bucket(key position - query position), head] (Raffel et al. 2019, arXiv 1910.10683).

    Half of the buckets stand for one distance each, the other half for ranges that widen as a logarithm up to
    max_distance. A stack that sees both ways has as many buckets for either direction.
    """

    class Config(Position.Config):
        num_buckets: Width = Field(
            32, description="rows of the table, in a stack that sees both ways for both directions"
        )
        max_distance: PositiveInt = Field(128, description="from here on all distances share the last bucket")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.num_heads is None:
                yield Problem("", "t5_bias has a column for each head; the layers it serves do not agree on num_heads")
            ways = 1 if shape.causal else 2
            near, left = divmod(self.num_buckets, 2 * ways)
            if left:
                yield Problem("num_buckets", f"must be a multiple of {2 * ways} here, got {self.num_buckets}")
            elif self.max_distance <= near:
                yield Problem(
                    "max_distance", f"must be above {near}, got {self.max_distance}; nearer ones have a bucket each"
                )

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        if shape.num_heads is None:
            raise UsageError("t5_bias needs num_heads in its shape")
        self.table = nn.Embedding(config.num_buckets, shape.num_heads)

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        if num_heads != self.shape.num_heads:
            raise UsageError(f"t5_bias was built for {self.shape.num_heads} heads, asked for {num_heads}")
        buckets = self.bucket(key_positions[:, None, :] - query_positions[:, :, None])
        out: Tensor = rearrange(self.table(buckets), "batch query key head -> batch head query key")
        return out

    def bucket(self, relative: Tensor) -> Tensor:
        """The row of each key position minus query position."""
        if self.shape.causal:
            return self._distance_bucket((-relative).clamp(min=0), self.config.num_buckets)
        half = self.config.num_buckets // 2
        return half * (relative > 0) + self._distance_bucket(relative.abs(), half)

    def _distance_bucket(self, distance: Tensor, buckets: int) -> Tensor:
        near = buckets // 2
        # float32, as the authors have it; a distance of 0 is never far
        share = torch.log(distance.clamp(min=1).float() / near) / math.log(self.config.max_distance / near)
        far = (near + (share * (buckets - near)).long()).clamp(max=buckets - 1)
        return torch.where(distance < near, distance, far)
