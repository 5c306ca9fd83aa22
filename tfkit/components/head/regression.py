"""A number for the whole text."""

from __future__ import annotations

from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.components.head.pool import pool
from tfkit.core.options import Activation
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.core.slots import Pool


@register("head", "regression")
class RegressionHead(Head):
    """value = output(activation(dense(pool(hidden)))) (Devlin et al. 2018, arXiv 1810.04805: STS-B).

    Without an activation there is no dense layer either.
    """

    class Config(Head.Config):
        pool: Pool = Field(
            "first",
            description="what stands for the text: its first token, its last or the mean of all, padding left out",
        )
        activation: Activation | None = Field(None, description="after a dense layer before the output; none: neither")
        bias: bool = Field(True, description="biases of dense and output")

        def pooling(self) -> Pool:
            return self.pool

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        dense = config.activation is not None
        self.dense = nn.Linear(shape.d_model, shape.d_model, bias=config.bias) if dense else nn.Identity()
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, 1, bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch time d_model] -> [batch]."""
        pooled = self.dropout(pool(hidden, real, self.config.pool))
        out: Tensor = rearrange(self.output(self.activation(self.dense(pooled))), "batch 1 -> batch")
        return out
