"""The gated feed-forward sublayer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.feedforward.base import FeedForward
from tfkit.core.component import Problem
from tfkit.core.context import Context
from tfkit.core.options import Activation, Bias, Width, check_bias, has_bias
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.dropout import Dropout

PROJECTIONS = ("gate", "up", "down")


@register("feedforward", "glu")
class GatedLinearUnit(FeedForward):
    """down(dropout(activation(gate(x)) * up(x))) (Shazeer 2020, arXiv 2002.05202).

    SwiGLU with silu, GEGLU with gelu, bilinear with identity.
    """

    class Config(FeedForward.Config):
        d_ff: Width = Field(description="inner width, of gate and up each")
        activation: Activation = Field("silu", description="of the gate")  # type: ignore[assignment]
        bias: Bias = Field(True, description="biases: all, none, or those of the projections named (gate, up, down)")
        dropout: DropoutRate = Field(0.0, description="dropout of the inner values, after the gate")

        def check(self, shape: Shape) -> Iterator[Problem]:
            for option, message in check_bias(self.bias, PROJECTIONS):
                yield Problem(option, message)

    residual_outputs = ("down",)
    gained = PROJECTIONS

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.d_model, config.d_ff, bias=has_bias(config.bias, "gate"))
        self.up = nn.Linear(shape.d_model, config.d_ff, bias=has_bias(config.bias, "up"))
        self.activation = config.activation.build(replace(shape, d_model=config.d_ff))
        self.dropout = Dropout(config.dropout)
        self.down = nn.Linear(config.d_ff, shape.d_model, bias=has_bias(config.bias, "down"))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
        return out
