"""Where in a text an answer begins and ends."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("head", "span")
class SpanHead(Head):
    """logits = output(hidden): how well an answer begins, and ends, at each token (Devlin et al. 2018: SQuAD)."""

    class Config(Head.Config):
        bias: bool = Field(True, description="a bias of the output; it shifts all places alike, so that it is inert")

    config: Config
    inert = frozenset({"output.bias"})

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        self.output = nn.Linear(shape.d_model, 2, bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch time d_model] -> [batch time 2]: of the beginning and of the end."""
        out: Tensor = self.output(self.dropout(hidden))
        return out
