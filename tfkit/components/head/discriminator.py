"""The head of ELECTRA: which tokens were replaced."""

from __future__ import annotations

from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.core.options import Activation
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("head", "discriminator")
class Discriminator(Head):
    """logit = output(activation(dense(hidden))), one for each token (Clark et al. 2020, arXiv 2003.10555)."""

    class Config(Head.Config):
        activation: Activation = Field("gelu", description="after dense")  # type: ignore[assignment]

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        self.dense = nn.Linear(shape.d_model, shape.d_model)
        self.activation = config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, 1)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch time d_model] -> [batch time], above 0 for tokens that are predicted to be replaced ones."""
        logits = self.output(self.activation(self.dense(self.dropout(hidden))))
        out: Tensor = rearrange(logits, "batch time 1 -> batch time")
        return out
