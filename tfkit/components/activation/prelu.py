"""ReLU with a learned slope."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.activation.base import Activation
from tfkit.core import component
from tfkit.core.options import Number
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("activation", "prelu")
class PReLU(Activation):
    """max(0, x) + weight * min(0, x), the weight learned (He et al. 2015, arXiv 1502.01852)."""

    class Config(component.Config):
        init: Number = Field(0.25, description="the slope for negative x that learning starts from")
        per_channel: bool = Field(False, description="a slope for each channel; false: one for all")

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.full((shape.d_model if config.per_channel else 1,), config.init))

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0) + self.weight * x.clamp(max=0)
