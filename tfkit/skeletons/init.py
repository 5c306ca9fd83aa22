"""my_part: a custom initialization."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.init import Init


@tfkit.register("init", "my_part")
class MyPart(Init):
    """Weights and tables ~ U(-bound, bound); biases are 0, and norms keep their initial values."""

    # Options of the part, as written in a recipe: {type: my_part, bound: 0.05}. Add your own here.
    class Config(tfkit.Config):
        bound: float = Field(0.05, gt=0, description="largest initial weight")

    config: Config

    # Change these methods. A table that is tied to the head is filled only once, as an embedding.
    def embedding(self, weight: Tensor) -> None:
        nn.init.uniform_(weight, -self.config.bound, self.config.bound)

    def linear(self, weight: Tensor) -> None:
        nn.init.uniform_(weight, -self.config.bound, self.config.bound)
