"""The original feed-forward sublayer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.feedforward.base import FeedForward, inner_norm
from tfkit.core.component import Problem
from tfkit.core.context import Context
from tfkit.core.options import Activation, Bias, Norm, Width, check_bias, check_norm, has_bias
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.dropout import Dropout

PROJECTIONS = ("up", "down")


@register("feedforward", "mlp")
class MLP(FeedForward):
    """down(dropout(activation(up(x)))) (Vaswani et al. 2017, arXiv 1706.03762, section 3.3)."""

    class Config(FeedForward.Config):
        d_ff: Width = Field(description="inner width")
        activation: Activation = Field("relu", description="between the two projections")  # type: ignore[assignment]
        bias: Bias = Field(True, description="biases: all, none, or those of the projections named (up, down)")
        inner_norm: Norm | None = Field(
            None, description="norm of the inner values, before down; none: no norm (BitNet)"
        )
        dropout: DropoutRate = Field(0.0, description="dropout of the inner values, after the activation")

        def check(self, shape: Shape) -> Iterator[Problem]:
            for option, message in check_bias(self.bias, PROJECTIONS):
                yield Problem(option, message)
            yield from check_norm("inner_norm", self.inner_norm, self.d_ff)

    residual_outputs = ("down",)
    gain_scaled = PROJECTIONS

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.up = nn.Linear(shape.d_model, config.d_ff, bias=has_bias(config.bias, "up"))
        self.activation = config.activation.build(replace(shape, d_model=config.d_ff))
        self.inner_norm = inner_norm(config.inner_norm, config.d_ff)
        self.dropout = Dropout(config.dropout)
        self.down = nn.Linear(config.d_ff, shape.d_model, bias=has_bias(config.bias, "down"))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = self.down(self.dropout(self.inner_norm(self.activation(self.up(x)))))
        return out
