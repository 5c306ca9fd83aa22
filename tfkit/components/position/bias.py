"""Position parts that bias or scale attention scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from einops import rearrange, repeat
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.position.base import Position
from tfkit.core.component import Problem, Shape
from tfkit.core.errors import UsageError
from tfkit.core.options import NonNegativeInt, PositiveFloat, PositiveInt, Width
from tfkit.core.registry import register


def slopes(num_heads: int, between: str = "below", device: torch.device | str = "cpu") -> Tensor:
    """Return the slope of each head in float64, [head]: 2^(-8h/n) for h = 1..n if n is a power of two.

    Otherwise, as in the authors' code, the slopes for the next lower power of two, then every other slope for the next
    higher power. With `between` = "above": every other slope for the higher power from the second on, then the rest.
    """
    below = 1 << (num_heads.bit_length() - 1)
    if between == "above" and below != num_heads:
        all_above = _powers(2 * below, device)
        return torch.cat((all_above[1::2], all_above[::2]))[:num_heads]
    return torch.cat((_powers(below, device), _powers(2 * below, device)[::2][: num_heads - below]))


def _powers(count: int, device: torch.device | str) -> Tensor:
    """Compute on the device, as a copy of a list would wait for it in every forward."""
    heads = torch.arange(1, count + 1, dtype=torch.float64, device=device)
    out: Tensor = 2.0 ** (-8 * heads / count)
    return out


@register("position", "alibi")
class ALiBi(Position):
    """scores - slope_h * |query position - key position| (Press et al. 2021, arXiv 2108.12409)."""

    class Config(Position.Config):
        between: Literal["below", "above"] = Field(
            "below",
            description="slopes if num_heads is not a power of two; below: the slopes for the next lower power, then "
            "some for the higher one (BLOOM); above: only slopes for the next higher power (MPT)",
        )
        scale: PositiveFloat = Field(1.0, description="factor on all slopes (Falcon: 1 / sqrt(head_dim))")
        bfloat16: bool = Field(
            False,
            description="multiply slopes by key positions, not distances, in bfloat16; only in causal stacks (Falcon)",
        )

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.bfloat16 and not shape.causal:
                yield Problem(
                    "bfloat16", "biases scores by key position, which is equivalent to distance only in a causal stack"
                )

    config: Config

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        slope = slopes(num_heads, self.config.between, query_positions.device).to(self.dtype)
        slope = rearrange(slope, "head -> 1 head 1 1")  # [1 head 1 1]
        query, key = query_positions[:, None, :, None], key_positions[:, None, None, :]
        if self.config.bfloat16:
            # softmax ignores constants shared by all keys; float32 because onnxruntime cannot multiply bfloat16
            product = slope.bfloat16().float() * key.bfloat16().float()
            of_keys = product.bfloat16().to(self.dtype) * self.config.scale
            return repeat(of_keys, "batch head 1 key -> batch head query key", query=query.shape[2])
        return -self.config.scale * slope * (query - key).abs()


@register("position", "t5_bias")
class T5Bias(Position):
    """scores + table[bucket(key position - query position), head] (Raffel et al. 2019, arXiv 1910.10683).

    Half of the buckets hold one distance each, the other half logarithmically widening ranges up to max_distance. A
    bidirectional stack uses half of the buckets for each direction.
    """

    class Config(Position.Config):
        num_buckets: Width = Field(
            32, description="number of buckets, for both directions together in a bidirectional stack"
        )
        max_distance: PositiveInt = Field(128, description="distance beyond which all keys share the last bucket")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.num_heads is None:
                yield Problem(
                    "",
                    "t5_bias has one column per head, but the layers differ in num_heads; use the same number in "
                    "all layers",
                )
            ways = 1 if shape.causal else 2
            near, left = divmod(self.num_buckets, 2 * ways)
            if left:
                yield Problem("num_buckets", f"must be a multiple of {2 * ways}, got {self.num_buckets}")
            elif self.max_distance <= near:
                yield Problem(
                    "max_distance", f"must exceed {near}, got {self.max_distance}: smaller distances have a bucket each"
                )

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        if shape.num_heads is None:
            raise UsageError("t5_bias needs num_heads in its shape")
        self.table = nn.Embedding(config.num_buckets, shape.num_heads)

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        if num_heads != self.shape.num_heads:
            raise UsageError(f"t5_bias was built for {self.shape.num_heads} heads, but {num_heads} are required")
        buckets = self.bucket(key_positions[:, None, :] - query_positions[:, :, None])
        out: Tensor = rearrange(self.table(buckets), "batch query key head -> batch head query key")
        return out

    def bucket(self, relative: Tensor) -> Tensor:
        """Return the table row of each relative position (key minus query)."""
        if self.shape.causal:
            return self._distance_bucket((-relative).clamp(min=0), self.config.num_buckets)
        half = self.config.num_buckets // 2
        return half * (relative > 0) + self._distance_bucket(relative.abs(), half)

    def _distance_bucket(self, distance: Tensor, buckets: int) -> Tensor:
        near = buckets // 2
        # float32 as in the authors' code
        share = torch.log(distance.clamp(min=1).float() / near) / math.log(self.config.max_distance / near)
        far = (near + (share * (buckets - near)).long()).clamp(max=buckets - 1)
        return torch.where(distance < near, distance, far)


@register("position", "log_temperature")
class LogTemperature(Position):
    """scores of the query at p times 1 + beta * ln(1 + floor((p + offset) / length)) (Llama 4, 2025; Ministral 3)."""

    class Config(Position.Config):
        beta: PositiveFloat = Field(0.1, description="growth rate of the factor")
        length: PositiveInt = Field(
            description="positions over which the factor is constant, such as the training length"
        )
        offset: NonNegativeInt = Field(0, description="added to the position (Llama 4: 1)")

    config: Config

    def temperature(self, positions: Tensor) -> Tensor:
        turns = torch.floor((positions + self.config.offset).double() / self.config.length)
        return (1 + self.config.beta * torch.log1p(turns)).to(self.dtype)
