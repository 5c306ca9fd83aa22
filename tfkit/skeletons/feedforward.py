"""my_part: a custom feed-forward sublayer, applied to each token separately."""

# Axes: batch, time, d_ff (inner channels), d_model.

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.feedforward import FeedForward


@tfkit.register("feedforward", "my_part")
class MyPart(FeedForward):
    """down(up(x)² * scale), with a square instead of an activation."""

    # Options of the part, as written in a recipe: {type: my_part, d_ff: 256}. Add your own here.
    class Config(FeedForward.Config):
        d_ff: int = Field(ge=1, description="inner width")
        scale: float = Field(1.0, description="factor on the squares")

    # A part that processes each token separately needs no declaration. If yours mixes tokens, declare its
    # `capabilities`.
    residual_outputs = ("down",)  # layers that write to the residual stream; some inits scale them with the depth
    config: Config

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        self.up = nn.Linear(shape.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, shape.d_model)

    def forward(self, x: Tensor, context: tfkit.Context) -> Tensor:
        # Change this: [batch time d_model] -> [batch time d_model].
        out: Tensor = self.down(self.up(x).square() * self.config.scale)
        return out
