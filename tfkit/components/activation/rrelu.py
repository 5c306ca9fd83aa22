"""ReLU with a random slope."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from tfkit.components.activation.base import Activation
from tfkit.core import component
from tfkit.core.options import Number
from tfkit.core.registry import register


@register("activation", "rrelu")
class RReLU(Activation):
    """max(0, x) + a * min(0, x), a ~ U(lower, upper) in training, else the mean (Xu et al. 2015, arXiv 1505.00853)."""

    class Config(component.Config):
        lower: Number = Field(1 / 8, description="least slope for negative x")
        upper: Number = Field(1 / 3, description="greatest slope for negative x")

        @model_validator(mode="after")
        def _ordered(self) -> RReLU.Config:
            if self.lower > self.upper:
                raise ValueError(f"lower {self.lower} is above upper {self.upper}")
            return self

    config: Config

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x, self.config.lower, self.config.upper, training=self.training)
