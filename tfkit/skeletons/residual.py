"""my_part: a custom residual layout, the wiring of sublayers and norms around the residual stream."""

# Axes: batch, time, d_model. Each forward, and each branch, maps [batch time d_model] to the same shape.

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.components.residual import Branch, Residual


@tfkit.register("residual", "my_part")
class MyPart(Residual):
    """x = x + scale * Dropout(Sublayer(Norm(x)))."""

    # Options of the part, as written in a recipe: {type: my_part, scale: 0.5}. Add your own here.
    class Config(Residual.Config):
        scale: float = Field(0.5, description="factor on the output of a sublayer")

    final_norm = True  # end the stack with a norm, because the residual stream itself is never normalized
    config: Config

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        # Change this. `branch(x)` computes Dropout(Sublayer(x)), and `branch.norm` is the norm of the sublayer.
        for branch in branches:
            x = x + self.config.scale * branch(branch.norm(x))
        return x
