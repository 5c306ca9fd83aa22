"""my_part: a custom residual layout with parallel streams."""

# Axes: batch, time, streams, d_model. Each branch maps [batch time d_model] to the same shape.

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.residual import Branch, Residual
from tfkit.core.options import PositiveInt


@tfkit.register("residual", "my_part")
class MyPart(Residual):
    """Each sublayer reads one stream in turn, and adds to every stream with a learned weight."""

    # Options of the part, as written in a recipe: {type: my_part, streams: 2}. `streams` is the number of streams.
    class Config(Residual.Config):
        streams: PositiveInt = Field(2, description="number of residual streams")

    final_norm = True  # end the stack with a norm, because the streams themselves are never normalized
    config: Config

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        # the names of the sublayers, such as ("attention", "feedforward")
        self.write = nn.ParameterDict({name: torch.linspace(0.5, 1.5, config.streams) for name in shape.sublayers})

    # The stack calls `enter(x)` before its first layer, by default equal copies, and `leave(x)` after its last, by
    # default the sum. Override them to start or end otherwise.
    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        # Change this. x is [batch time streams d_model]; a branch reads and returns [batch time d_model].
        for number, branch in enumerate(branches):
            out = branch(branch.norm(x[:, :, number % self.config.streams]))
            x = x + self.write[branch.name][:, None] * out[:, :, None]
        return x
