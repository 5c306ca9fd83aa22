"""Attention scores scaled by the logarithm of the position."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.core.options import NonNegativeInt, PositiveFloat, PositiveInt
from tfkit.core.registry import register


@register("position", "log_temperature")
class LogTemperature(Position):
    """scores of the query at p times 1 + beta * ln(1 + floor((p + offset) / length)) (Llama 4, 2025; Ministral 3)."""

    class Config(Position.Config):
        beta: PositiveFloat = Field(0.1, description="how fast the factor grows")
        length: PositiveInt = Field(description="positions over which it stays, such as the longest text of training")
        offset: NonNegativeInt = Field(0, description="added to the position (Llama 4: 1)")

    config: Config

    def temperature(self, positions: Tensor) -> Tensor:
        turns = torch.floor((positions + self.config.offset).double() / self.config.length)
        return (1 + self.config.beta * torch.log1p(turns)).to(self.dtype)
