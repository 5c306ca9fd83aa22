"""my_part: a custom norm."""

# Axes: width (channels). Each forward maps [... width] to the same shape.

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.norm import Norm


@tfkit.register("norm", "my_part")
class MyPart(Norm):
    """weight * x / (mean |x| + eps)."""

    # Options of the part, as written in a recipe: {type: my_part, eps: 1e-5}. Add your own here.
    class Config(tfkit.Config):
        eps: float = Field(1e-6, gt=0, description="added to the mean, to avoid division by zero")

    config: Config

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.ones(shape.d_model))

    def forward(self, x: Tensor) -> Tensor:
        # Change this: [... width] -> [... width]. Compute statistics in float32, since half precision is too coarse.
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = wide.abs().mean(dim=-1, keepdim=True)  # [... 1]
        return (self.weight.to(wide.dtype) * wide / (mean + self.config.eps)).to(x.dtype)
