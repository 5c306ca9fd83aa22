"""An ELU with learned curves on both sides."""

from __future__ import annotations

import math

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from tfkit.components.activation.base import Activation
from tfkit.core import component
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.core.shape import Shape

NEAR = -1e-6  # the largest x of the exponential


@register("activation", "xielu")
class XIELU(Activation):
    """a x² + beta x above 0, b (exp(x) - 1 - x) + beta x below, a and b learned (Huang and Schlag 2024, 2411.13010).

    a = softplus(positive) and b = beta + softplus(negative), so that both stay above 0.
    """

    class Config(component.Config):
        positive: PositiveFloat = Field(0.8, description="a, that learning starts from")
        negative: PositiveFloat = Field(0.8, description="b, that learning starts from; more than beta")
        beta: PositiveFloat = Field(0.5, description="slope at 0")

        @model_validator(mode="after")
        def _ordered(self) -> XIELU.Config:
            if self.negative <= self.beta:
                raise ValueError(f"negative {self.negative} is not above beta {self.beta}")
            return self

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.positive = nn.Parameter(torch.tensor([math.log(math.expm1(config.positive))]))
        self.negative = nn.Parameter(torch.tensor([math.log(math.expm1(config.negative - config.beta))]))

    def forward(self, x: Tensor) -> Tensor:
        beta = self.config.beta
        above = nn.functional.softplus(self.positive) * x * x
        below = (beta + nn.functional.softplus(self.negative)) * (x.clamp(max=NEAR).expm1() - x)
        return torch.where(x > 0, above, below) + beta * x
