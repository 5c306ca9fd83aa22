"""my_part: a custom activation."""

# Axes: width (channels). Each forward maps [... width] to the same shape.

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.activation import Activation


@tfkit.register("activation", "my_part")
class MyPart(Activation):
    """x * sigmoid(slope * x), with a learned slope."""

    # Options of the part, as written in a recipe: {type: my_part, slope: 1.7}. Add your own here.
    class Config(tfkit.Config):
        slope: float = Field(1.0, description="initial slope")

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        self.slope = nn.Parameter(torch.tensor(config.slope))

    def forward(self, x: Tensor) -> Tensor:
        # Change this: [... width] -> [... width].
        return x * (self.slope * x).sigmoid()
