"""The layout of DeepNet, for very deep post-norm stacks."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field
from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core import component
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.core.shape import Shape


def constants(shape: Shape) -> tuple[float, float]:
    """Alpha and beta of the paper's table: N layers in the encoder, M in the decoder."""
    if not shape.other_depth:
        return (2 * shape.depth) ** 0.25, (8 * shape.depth) ** -0.25
    if shape.side == "decoder":
        return (3 * shape.depth) ** 0.25, (12 * shape.depth) ** -0.25
    depths = shape.depth**4 * shape.other_depth
    return 0.81 * depths ** (1 / 16), 0.87 * depths ** (-1 / 16)


@register("residual", "deep_norm")
class DeepNorm(Residual):
    """x = Norm(alpha * x + Dropout(Sublayer(x))), weights begin times beta (Wang et al. 2022, arXiv 2203.00555)."""

    class Config(Residual.Config):
        alpha: PositiveFloat | None = Field(None, description="factor on x; none: from the depths, as in the paper")
        beta: PositiveFloat | None = Field(None, description="factor on initial weights; none: from the depths")

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.alpha = constants(shape)[0] if config.alpha is None else config.alpha

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = branch.norm(self.alpha * x + branch(x))
        return x

    @classmethod
    def init_gain(cls, config: component.Config, shape: Shape) -> float:
        beta = config.beta if isinstance(config, cls.Config) else None
        return constants(shape)[1] if beta is None else beta
