"""Heads with one output per text, from a pooled state."""

# Axes: batch, time, d_output, outputs, classes, targets, d_model.

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from einops import rearrange, reduce
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head
from tfkit.core.component import Problem, Shape, Unlearnable
from tfkit.core.options import Activation, Classes, NonNegativeInt, Width, class_count
from tfkit.core.registry import register
from tfkit.core.slots import Pool


def pool(hidden: Tensor, real: Tensor | None, how: Literal["first", "mean", "last"]) -> Tensor:
    """Pool [batch time d_model] to [batch d_model] over real tokens (`real` [batch time], all if None)."""
    if real is None:
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    real = real.bool()
    if how == "mean":
        count = reduce(real, "batch time -> batch 1", "sum").clamp(min=1)
        # padding may be NaN, so it is masked rather than multiplied by 0
        kept = hidden.masked_fill(~rearrange(real, "batch time -> batch time 1"), 0)
        return reduce(kept, "batch time d_model -> batch d_model", "sum") / count  # [batch d_model]
    place = torch.arange(hidden.shape[1], device=hidden.device)
    if how == "first":
        chosen = torch.where(real, place, hidden.shape[1] - 1).amin(dim=1)
    else:
        chosen = torch.where(real, place, 0).amax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), chosen]  # [batch d_model]


class PoolingHead(Head):
    """A head that reads the pooled hidden state of a text."""

    class Config(Head.Config):
        pool: Pool = Field(
            "first",
            description="hidden state of the text: that of its first or last token, or the mean over its tokens; "
            "padding is ignored",
        )

        def pooling(self) -> Pool:
            return self.pool


@register("head", "pooled")
class Pooled(PoolingHead):
    """vector = activation(dense(pool(hidden))), one per text (Devlin et al. 2018, arXiv 1810.04805: the pooler).

    The dense layer exists if `d_output` or `activation` is set. `normalized` scales the vector to length 1 (Reimers
    and Gurevych 2019, arXiv 1908.10084).
    """

    class Config(PoolingHead.Config):
        until: NonNegativeInt | None = Field(
            None, description="id of the token that ends a text (CLIP); none: the last token"
        )
        d_output: Width | None = Field(
            None, description="width of the dense layer; none: d_model if there is an activation, else no dense layer"
        )
        activation: Activation | None = Field(
            None, description="activation of the dense layer (BERT: tanh); none: no activation"
        )
        bias: bool = Field(True, description="add a bias to the dense layer")
        normalized: bool = Field(False, description="divide the vector by its norm")

        def end_token(self) -> int | None:
            return self.until

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.normalized and (self.d_output or shape.d_model) == 1:
                option = "normalized" if self.d_output is None else "d_output"
                yield Unlearnable(
                    option, "a normalized vector of width 1 is 1 or -1, so nothing is learned; use a larger width"
                )

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        plain = config.d_output is None and config.activation is None
        width = config.d_output or shape.d_model
        self.dense = nn.Identity() if plain else nn.Linear(shape.d_model, width, bias=config.bias)
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Map [batch time d_model] to [batch d_output]."""
        pooled = self.dropout(pool(hidden, real, self.config.pool))  # [batch d_model]
        out: Tensor = self.activation(self.dense(pooled))  # [batch d_output]
        return nn.functional.normalize(out, dim=-1) if self.config.normalized else out


class TextHead(PoolingHead):
    """A head with outputs per text: output(activation(dense(pool(hidden)))). The dense layer needs an activation."""

    class Config(PoolingHead.Config):
        activation: Activation | None = Field(
            None, description="activation of a dense layer before the output (BERT: tanh); none: no dense layer"
        )
        bias: bool = Field(True, description="add biases to dense and output")

        def outputs(self) -> int:
            return 1

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        dense = config.activation is not None
        self.dense = nn.Linear(shape.d_model, shape.d_model, bias=config.bias) if dense else nn.Identity()
        self.activation = nn.Identity() if config.activation is None else config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, config.outputs(), bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Map [batch time d_model] to [batch outputs]."""
        pooled = self.dropout(pool(hidden, real, self.config.pool))  # [batch d_model]
        out: Tensor = self.output(self.activation(self.dense(pooled)))  # [batch outputs]
        return out


@register("head", "classifier")
class Classifier(TextHead):
    """logits = output(activation(dense(pool(hidden)))) (Devlin et al. 2018, arXiv 1810.04805).

    The dense layer exists only with an activation.
    """

    class Config(TextHead.Config):
        num_classes: Classes = Field(
            description="number of classes; labels: the number of labels in the training corpus"
        )
        independent: bool = Field(
            False, description="predict each class independently (sigmoid), for texts with several labels (multi_label)"
        )

        def classes(self) -> int | Literal["labels"]:
            return self.num_classes

        def outputs(self) -> int:
            return class_count(self.num_classes)

        def has_independent_classes(self) -> bool:
            return self.independent


@register("head", "regression")
class RegressionHead(TextHead):
    """value = output(activation(dense(pool(hidden)))) (Devlin et al. 2018, arXiv 1810.04805: STS-B).

    The dense layer exists only with an activation. A standardized head learns (value - mean) / deviation, with the mean
    and deviation of each target in the training corpus.
    """

    class Config(TextHead.Config):
        num_targets: Classes | None = Field(
            None, description="number of values; labels: the number of columns of `label`; none: a single value"
        )
        standardize: bool | None = Field(
            None, description="learn values minus their mean, divided by their deviation; none: if num_targets is set"
        )

        def outputs(self) -> int:
            return class_count(self.num_targets or 1)

    config: Config
    mean: Tensor
    deviation: Tensor

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        self.standardized = config.num_targets is not None if config.standardize is None else config.standardize
        if self.standardized:
            self.register_buffer("mean", torch.zeros(config.outputs()))
            self.register_buffer("deviation", torch.ones(config.outputs()))

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Map [batch time d_model] to [batch], or to [batch targets]."""
        out = super().forward(hidden, real)  # [batch targets]
        if self.standardized:
            out = out * self.deviation + self.mean
        if self.config.num_targets is None:
            out = rearrange(out, "batch 1 -> batch")  # [batch]
        return out
