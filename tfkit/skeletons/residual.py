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

    # The options of the part, as a recipe writes them: {type: my_part, scale: 0.5}. Add yours here.
    class Config(Residual.Config):
        scale: float = Field(0.5, description="factor on the output of a sublayer")

    final_norm = True  # the stack ends in a norm, since the stream itself is never normalised
    config: Config

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        # Change this. A branch is called with x and gives Dropout(Sublayer(x)); `branch.norm` is the norm it has.
        for branch in branches:
            x = x + self.config.scale * branch(branch.norm(x))
        return x
