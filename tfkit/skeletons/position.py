"""my_part: a custom position part, which encodes the positions of tokens."""

from __future__ import annotations

from einops import rearrange
from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.components.position.base import Position


@tfkit.register("position", "my_part")
class MyPart(Position):
    """scores - strength * log(1 + |query position - key position|)."""

    # Options of the part, as written in a recipe: {type: my_part, strength: 2}. Add your own here.
    class Config(Position.Config):
        strength: float = Field(1.0, ge=0, description="penalty per position of distance")

    config: Config

    # Override one or more of four hooks: embed (added to token embeddings), rotation (of queries and keys), bias (added
    # to the scores) and temperature (a factor on the scores).
    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor:
        # Change this: positions [batch|1 time] -> bias [batch|1 heads|1 query key].
        distance = rearrange(query_positions, "batch query -> batch 1 query 1") - rearrange(
            key_positions, "batch key -> batch 1 1 key"
        )
        return -self.config.strength * distance.abs().to(self.dtype).log1p()
