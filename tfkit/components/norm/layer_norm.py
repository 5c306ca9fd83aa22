"""Layer normalisation."""

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


@register("norm", "layer_norm")
class LayerNorm(Norm):
    """y = (weight_offset + weight) * (x - mean(x)) / sqrt(var(x) + eps) + bias (Ba et al. 2016, arXiv 1607.06450)."""

    class Config(GroupedConfig):
        eps: PositiveFloat = Field(1e-5, description="added to the variance")
        bias: bool = Field(True, description="a learned bias")
        affine: bool = Field(True, description="a learned weight, and the bias; false: neither")
        weight_offset: Number = Field(0.0, description="what the weight counts from: 1 makes a weight of 0 neutral")

        leaves = {1: "only its bias", 2: "only which of them is larger"}

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.full((shape.d_model,), 1.0 - config.weight_offset)) if config.affine else None
        self.bias = nn.Parameter(torch.zeros(shape.d_model)) if config.affine and config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        size = self.config.group_size
        if size is None and (not self.config.weight_offset or self.weight is None):
            return torch.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.config.eps)
        # a half-precision 1 + weight would round the weight away
        weight = None if self.weight is None else self.config.weight_offset + wide(self.weight)
        bias = None if self.bias is None else wide(self.bias)
        if size is None:
            return F.layer_norm(wide(x), x.shape[-1:], weight, bias, self.config.eps).to(x.dtype)
        y = ungrouped(F.layer_norm(grouped(wide(x), size), (size,), eps=self.config.eps))
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)
