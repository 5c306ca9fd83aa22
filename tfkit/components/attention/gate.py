"""A gate on the outputs of attention heads."""

# Axes: batch, time, head, dim (channels of a value head), d_model.

from __future__ import annotations

from typing import Literal

from einops import rearrange
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from tfkit.core.options import Activation, part_option
from tfkit.core.shape import Shape


class Gate(BaseModel):
    """Outputs of the heads times activation(gate(x)), x being the layer's input (Qiu et al. 2025, arXiv 2505.06708)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, title="Gate")

    over: Literal["channel", "head"] = Field("channel", description="gate each channel, or each head as a whole")
    activation: Activation = part_option("sigmoid", "activation of the gate")
    bias: bool = Field(False, description="add a bias to the gate's projection")

    def build(self, shape: Shape, heads: int, dim: int) -> HeadGate:
        """Build the gate for `heads` of width `dim`."""
        return HeadGate(self, shape, heads, dim)


class HeadGate(nn.Module):
    """Multiplies [batch head time dim] by a gate computed from [batch time d_model]."""

    def __init__(self, config: Gate, shape: Shape, heads: int, dim: int) -> None:
        super().__init__()
        self.heads = heads
        width = heads * dim if config.over == "channel" else heads
        self.projection = nn.Linear(shape.d_model, width, bias=config.bias)
        self.activation = config.activation.build(Shape(width))

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        gate = self.activation(self.projection(x))  # [batch time head*dim], or [batch time head] if over heads
        by_head: Tensor = rearrange(gate, "batch time (head dim) -> batch head time dim", head=self.heads)
        return out * by_head  # [batch head time dim]
