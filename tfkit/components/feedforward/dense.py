"""Dense feed-forward layers."""

# Axes: batch, time, d_ff (inner channels), d_model.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.sublayer import Sublayer
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Context
from tfkit.core.inputs import TOKENWISE
from tfkit.core.options import (
    Activation,
    Bias,
    Norm,
    Number,
    PositiveFloat,
    Width,
    check_bias,
    check_norm,
    has_bias,
    part_option,
)
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.registry import register
from tfkit.functional.dropout import Dropout


class FeedForward(Sublayer):
    """A position-wise sublayer: [batch time d_model] to the same shape."""

    capabilities = TOKENWISE


PROJECTIONS = ("up", "down")


@register("feedforward", "mlp")
class MLP(FeedForward):
    """down(dropout(activation(up(x)))) (Vaswani et al. 2017, arXiv 1706.03762, section 3.3)."""

    class Config(FeedForward.Config):
        d_ff: Width = Field(description="inner width")
        activation: Activation = part_option("relu", "activation between the two projections")
        bias: Bias = Field(True, description="biases: all, none, or a list of projections (up, down)")
        inner_norm: Norm | None = Field(
            None, description="norm of the inner activations, before down (BitNet); none: no norm"
        )
        dropout: DropoutRate = Field(0.0, description="dropout of the inner activations")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from check_bias(self.bias, PROJECTIONS)
            yield from check_norm("inner_norm", self.inner_norm, self.d_ff)

    residual_outputs = ("down",)
    gain_scaled = PROJECTIONS

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.up = nn.Linear(shape.d_model, config.d_ff, bias=has_bias(config.bias, "up"))
        self.activation = config.activation.build(replace(shape, d_model=config.d_ff))
        self.inner_norm = nn.Identity() if config.inner_norm is None else config.inner_norm.build(Shape(config.d_ff))
        self.dropout = Dropout(config.dropout)
        self.down = nn.Linear(config.d_ff, shape.d_model, bias=has_bias(config.bias, "down"))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = self.down(self.dropout(self.inner_norm(self.activation(self.up(x)))))  # [batch time d_model]
        return out


GATED_PROJECTIONS = ("gate", "up", "down")


@register("feedforward", "glu")
class GatedLinearUnit(FeedForward):
    """down(dropout(activation(gate(x)) * up(x))) (Shazeer 2020, arXiv 2002.05202).

    SwiGLU with silu, GEGLU with gelu, bilinear with identity.
    """

    class Config(FeedForward.Config):
        d_ff: Width = Field(description="inner width, of both gate and up")
        activation: Activation = part_option("silu", "activation of the gate")
        bias: Bias = Field(True, description="biases: all, none, or a list of projections (gate, up, down)")
        limit: PositiveFloat | None = Field(
            None, description="clamp gate to at most limit, and up to [-limit, limit] (GPT-OSS: 7); none: no clamping"
        )
        up_offset: Number = Field(0.0, description="added to up (GPT-OSS: 1)")
        inner_norm: Norm | None = Field(
            None, description="norm of the inner activations, before down (BitNet); none: no norm"
        )
        dropout: DropoutRate = Field(0.0, description="dropout of the inner activations, after the gate")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from check_bias(self.bias, GATED_PROJECTIONS)
            yield from check_norm("inner_norm", self.inner_norm, self.d_ff)

    residual_outputs = ("down",)
    gain_scaled = GATED_PROJECTIONS
    fused = ("gate", "up")
    picture = ("gated feed-forward", "gate, up", "activation(gate) × up", "down")
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.d_model, config.d_ff, bias=has_bias(config.bias, "gate"))
        self.up = nn.Linear(shape.d_model, config.d_ff, bias=has_bias(config.bias, "up"))
        self.activation = config.activation.build(replace(shape, d_model=config.d_ff))
        self.inner_norm = nn.Identity() if config.inner_norm is None else config.inner_norm.build(Shape(config.d_ff))
        self.dropout = Dropout(config.dropout)
        self.down = nn.Linear(config.d_ff, shape.d_model, bias=has_bias(config.bias, "down"))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Project x [batch time d_model] to gate and up [batch time d_ff]."""
        return self.apply_fused(x)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        gate, up = self.project(x)  # [batch time d_ff] each
        if self.config.limit is not None:
            gate, up = gate.clamp(max=self.config.limit), up.clamp(-self.config.limit, self.config.limit)
        up = up + self.config.up_offset if self.config.up_offset else up
        inner = self.inner_norm(self.activation(gate) * up)  # [batch time d_ff]
        out: Tensor = self.down(self.dropout(inner))  # [batch time d_model]
        return out
