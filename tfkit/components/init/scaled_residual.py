"""The initial values of GPT-2."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.init.base import Init, linears
from tfkit.components.sublayer import Sublayer
from tfkit.core import component
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register


@register("init", "scaled_residual")
class ScaledResidual(Init):
    """N(0, std²), residual outputs divided by sqrt(2 * num_layers), their number (Radford et al. 2019, GPT-2, 2.3).

    The residual stream is a sum of that many outputs; its variance then does not grow with depth.
    """

    class Config(component.Config):
        std: PositiveFloat = Field(0.02, description="standard deviation")

    config: Config

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.config.std)

    def linear(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.config.std)

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        return self.config.std

    def depth_gain(self, depth: int) -> float:
        return float((2 * depth) ** -0.5)

    def finish(self, model: nn.Module) -> None:
        outputs = {
            linear.weight: self.depth_gain(sublayer.shape.depth)
            for sublayer in model.modules()
            if isinstance(sublayer, Sublayer)
            for linear in linears(sublayer, sublayer.residual_outputs)
        }
        for weight, factor in outputs.items():
            weight.mul_(factor)
