"""A class for the whole text."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.components.head.pool import pool
from tfkit.core.options import Activation, Classes, class_count
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.core.slots import Pool


@register("head", "classifier")
class Classifier(Head):
    """logits = output(activation(dense(pool(hidden)))) (Devlin et al. 2018, arXiv 1810.04805).

    Without an activation there is no dense layer either.
    """

    class Config(Head.Config):
        num_classes: Classes = Field(description="classes; labels: as many as the training corpus has labels")
        pool: Pool = Field(
            "first",
            description="what stands for the text: its first token, its last or the mean of all, padding left out",
        )
        activation: Activation | None = Field(
            None, description="after a dense layer before the output (BERT: tanh); none: neither"
        )
        bias: bool = Field(True, description="biases of dense and output")
        independent: bool = Field(
            False, description="each class has a probability of its own (sigmoid), for texts of several; not to train"
        )

        def pooling(self) -> Pool:
            return self.pool

        def classes(self) -> int | Literal["labels"]:
            return self.num_classes

        def has_independent_classes(self) -> bool:
            return self.independent

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        dense = config.activation is not None
        self.dense = nn.Linear(shape.d_model, shape.d_model, bias=config.bias) if dense else nn.Identity()
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, class_count(config.num_classes), bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        pooled = self.dropout(pool(hidden, real, self.config.pool))
        out: Tensor = self.output(self.activation(self.dense(pooled)))
        return out
