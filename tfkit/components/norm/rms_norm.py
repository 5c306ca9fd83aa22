"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.norm.base import GroupedConfig, Norm, grouped, ungrouped
from tfkit.core.options import Number, PositiveFloat
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.precision import wide


@register("norm", "rms_norm")
class RMSNorm(Norm):
    """y = (weight_offset + weight) * x / sqrt(mean(x²) + eps) + bias (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    class Config(GroupedConfig):
        eps: PositiveFloat = Field(1e-6, description="added to the mean square")
        bias: bool = Field(False, description="a learned bias")
        affine: bool = Field(True, description="a learned weight, and the bias if there is one; false: neither")
        weight_offset: Number = Field(
            0.0, description="what the weight counts from: 1 makes a weight of 0 neutral (Gemma)"
        )

        leaves = {1: "only the sign"}

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.full((shape.d_model,), 1.0 - config.weight_offset)) if config.affine else None
        self.bias = nn.Parameter(torch.zeros(shape.d_model)) if config.affine and config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        # offset, weight and bias are applied before the result is rounded to half precision
        weight = None if self.weight is None else wide(self.weight)
        if weight is not None and self.config.weight_offset:
            weight = self.config.weight_offset + weight
        size = self.config.group_size
        if size is None:
            y = F.rms_norm(wide(x), x.shape[-1:], weight, self.config.eps)
        else:
            y = ungrouped(F.rms_norm(grouped(wide(x), size), (size,), eps=self.config.eps))
            y = y if weight is None else y * weight
        return (y if self.bias is None else y + wide(self.bias)).to(x.dtype)
