"""A vector for the whole text."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.components.head.pool import pool
from tfkit.core.component import Problem, Unlearnable
from tfkit.core.options import Activation, NonNegativeInt, Width
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.core.slots import Pool


@register("head", "pooled")
class Pooled(Head):
    """vector = activation(dense(pool(hidden))), one for each text (Devlin et al. 2018, arXiv 1810.04805: the pooler).

    The dense layer exists if `d_output` or `activation` is set. `normalized` gives vectors of length 1 (Reimers
    and Gurevych 2019, arXiv 1908.10084).
    """

    class Config(Head.Config):
        pool: Pool = Field(
            "first",
            description="what stands for the text: its first token, its last or the mean of all, padding left out",
        )
        until: NonNegativeInt | None = Field(
            None, description="id of the token that a text ends with; none: it ends with its last token (CLIP)"
        )
        d_output: Width | None = Field(None, description="width of a dense layer; none: d_model, or no such layer")
        activation: Activation | None = Field(None, description="after a dense layer (BERT: tanh); none: no activation")
        bias: bool = Field(True, description="a bias of the dense layer")
        normalized: bool = Field(False, description="divided by its length")

        def pooling(self) -> Pool:
            return self.pool

        def end_token(self) -> int | None:
            return self.until

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.normalized and (self.d_output or shape.d_model) == 1:
                option = "normalized" if self.d_output is None else "d_output"
                yield Unlearnable(option, "a vector of one number divided by its length is only a sign: nothing learns")

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        plain = config.d_output is None and config.activation is None
        width = config.d_output or shape.d_model
        self.dense = nn.Identity() if plain else nn.Linear(shape.d_model, width, bias=config.bias)
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch time d_model] -> [batch d_output]."""
        out: Tensor = self.activation(self.dense(self.dropout(pool(hidden, real, self.config.pool))))
        return nn.functional.normalize(out, dim=-1) if self.config.normalized else out
