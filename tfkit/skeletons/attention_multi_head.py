"""my_part: a custom attention that changes one step of multi_head."""

# Axes: batch, time, head, query and key (tokens), dim (channels of a head), d_model.

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.attention import MultiHead


@tfkit.register("attention", "my_part")
class MyPart(MultiHead):
    """softmax(sharpness_h q_h k_hᵀ scale) v_h, with a learned sharpness of each head."""

    # Options of the part besides those of multi_head, as written in a recipe: {type: my_part, num_heads: 8}.
    class Config(MultiHead.Config):
        sharpness: float = Field(1.0, gt=0, description="initial factor on the scores of every head")

    # The capabilities are those of multi_head; `tfkit parts --verify` tests each one. If the part lacks one, remove it:
    # capabilities = MultiHead.capabilities - {"weights"}
    config: Config

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        self.sharpness = nn.Parameter(torch.full((config.num_heads, 1, 1), config.sharpness))

    # Change this, or override another step. In order: project, split_heads, normalize_heads, rotate, scale,
    # keys_values, attend, gated, join_heads; `tfkit parts attention --declarations` prints them with their shapes.
    def scale(self, query: Tensor, context: tfkit.Context) -> Tensor:
        return super().scale(query, context) * self.sharpness  # [batch head query dim]
