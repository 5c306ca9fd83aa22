"""A gated convolution over a few tokens."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.mixer.base import Mixer
from tfkit.core.context import Context
from tfkit.core.options import Width
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.convolve import Columns, causal_convolution


@register("mixer", "short_convolution")
class ShortConvolution(Mixer):
    """output(C x * convolve(B x * value(x))), each channel by itself over `size` tokens (LFM2, arXiv 2511.23404)."""

    class Config(Mixer.Config):
        size: Width = Field(3, description="tokens that the convolution reads: the last ones, itself included")
        bias: bool = Field(False, description="biases of the projections and of the convolution")

    capabilities = frozenset({"causal", "cache", "padding", "compile", "export"})
    residual_outputs = ("output",)
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        width = shape.d_model
        self.input_gate = nn.Linear(width, width, bias=config.bias)
        self.output_gate = nn.Linear(width, width, bias=config.bias)
        self.value = nn.Linear(width, width, bias=config.bias)
        self.convolution = nn.Conv1d(width, width, config.size, groups=width, bias=config.bias)
        self.output = nn.Linear(width, width, bias=config.bias)

    def new_state(self) -> Columns:
        """Nothing read yet."""
        return Columns()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        mixed, real = self.input_gate(x) * self.value(x), context.mask.real
        if real is not None:
            mixed = mixed * real[:, -x.shape[1] :, None]  # padding is as if there were nothing before the text
        convolved = causal_convolution(mixed, self.convolution.weight[:, 0], self.convolution.bias, context.state)
        merged: Tensor = self.output(self.output_gate(x) * convolved)
        return merged
