"""A class for each token."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.core.options import Activation, Classes, class_count
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("head", "token_classifier")
class TokenClassifier(Head):
    """logits = output(activation(dense(hidden))) of each token (Devlin et al. 2018, arXiv 1810.04805: named entities).

    Without an activation there is no dense layer either.
    """

    class Config(Head.Config):
        num_classes: Classes = Field(description="classes; labels: as many as the training corpus has tags")
        activation: Activation | None = Field(None, description="after a dense layer before the output; none: neither")
        bias: bool = Field(True, description="biases of dense and output")

        def classes(self) -> int | Literal["labels"]:
            return self.num_classes

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        dense = config.activation is not None
        self.dense = nn.Linear(shape.d_model, shape.d_model, bias=config.bias) if dense else nn.Identity()
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, class_count(config.num_classes), bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch time d_model] -> [batch time num_classes]."""
        out: Tensor = self.output(self.activation(self.dense(self.dropout(hidden))))
        return out
