"""A class for the whole text."""

from __future__ import annotations

from typing import Literal

import torch
from einops import rearrange, reduce
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.core.options import Activation, PositiveInt
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("head", "classifier")
class Classifier(Head):
    """logits = output(activation(dense(pool(hidden)))) (Devlin et al. 2018, arXiv 1810.04805).

    Without an activation there is no dense layer either.
    """

    class Config(Head.Config):
        num_classes: PositiveInt = Field(description="classes")
        pool: Literal["first", "mean", "last"] = Field(
            "first",
            description="what stands for the text: its first token, its last or the mean of all, padding left out",
        )
        activation: Activation | None = Field(
            None, description="after a dense layer before the output (BERT: tanh); none: neither"
        )
        bias: bool = Field(True, description="biases of dense and output")

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        dense = config.activation is not None
        self.dense = nn.Linear(shape.d_model, shape.d_model, bias=config.bias) if dense else nn.Identity()
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, config.num_classes, bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        pooled = self.dropout(pool(hidden, real, self.config.pool))
        out: Tensor = self.output(self.activation(self.dense(pooled)))
        return out


def pool(hidden: Tensor, real: Tensor | None, how: Literal["first", "mean", "last"]) -> Tensor:
    """[batch time d_model] -> [batch d_model], of the real tokens (`real` [batch time], all when None) alone."""
    if real is None:
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    real = real.bool()
    if how == "mean":
        count = reduce(real, "batch time -> batch 1", "sum").clamp(min=1)
        # padding may hold anything, a NaN too, so it is masked out rather than multiplied by 0
        kept = hidden.masked_fill(~rearrange(real, "batch time -> batch time 1"), 0)
        return reduce(kept, "batch time d_model -> batch d_model", "sum") / count
    place = torch.arange(hidden.shape[1], device=hidden.device)
    if how == "first":
        wanted = torch.where(real, place, hidden.shape[1] - 1).amin(dim=1)
    else:
        wanted = torch.where(real, place, 0).amax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), wanted]
