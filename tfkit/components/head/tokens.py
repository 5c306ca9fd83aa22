"""Heads with one output per token."""

# Axes: batch, time, num_classes, d_model.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import Head, TokenHead
from tfkit.core import component
from tfkit.core.component import Problem, Shape
from tfkit.core.options import (
    Activation,
    Bias,
    Classes,
    Norm,
    PositiveFloat,
    Scale,
    Width,
    check_bias,
    check_norm,
    class_count,
    has_bias,
    part_option,
    scale_factor,
)
from tfkit.core.registry import register


@register("head", "language_model")
class LanguageModel(TokenHead):
    """logits = output(scale * hidden), tied to the token table or not (Press and Wolf 2016, arXiv 1608.05859).

    If the tied table is not d_model wide, a projection without bias precedes it.
    """

    class Config(TokenHead.Config):
        bias: bool | Literal["frozen"] = Field(
            False, description="add a bias; frozen: a constant bias, not a parameter (BART)"
        )
        scale: Scale = Field(None, description="factor on the hidden states (T5: 1/sqrt_d_model)")
        softcap: PositiveFloat | None = Field(None, description="c in c * tanh(logits / c); none: no cap (Gemma 2: 30)")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.vocab_size is None:
                yield Problem("", "language_model needs a vocab_size in the model: a number or `tokenizer`")

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        width, vocab_size, table = self._target(embedding)
        self.projection = nn.Identity() if width == shape.d_model else nn.Linear(shape.d_model, width, bias=False)
        self.output = self._tie(width, vocab_size, config.bias, table)
        self.scale = scale_factor(config.scale, shape.d_model)

    def features(self, hidden: Tensor) -> Tensor:
        x = self.dropout(hidden)
        out: Tensor = self.projection(x if self.scale == 1.0 else x * self.scale)
        return out

    @property
    def plain(self) -> bool:
        return self.config.softcap is None and type(self).finish is LanguageModel.finish

    def finish(self, logits: Tensor) -> Tensor:
        cap = self.config.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


PROJECTIONS = ("dense", "output")


@register("head", "masked_lm")
class MaskedLM(TokenHead):
    """logits = output(norm(activation(dense(hidden)))) (Devlin et al. 2018, arXiv 1810.04805).

    When tied to a factorised table, dense maps to the table's width.
    """

    class Config(TokenHead.Config):
        activation: Activation = part_option("gelu", "activation of dense")
        norm: Norm | None = part_option(
            "layer_norm", "norm after the activation; if omitted in a recipe: the stack's norm"
        )
        d_output: Width | None = Field(None, description="output width of dense (RemBERT); none: d_model")
        d_inner: Width | None = Field(
            None, description="width of a dense layer and activation before dense (UltraBERT); none: no such layer"
        )
        bias: Bias | Literal["frozen"] = Field(
            True,
            description="biases: all, none, or a list of dense and output; frozen: both, but output's bias is a "
            "constant",
        )

        def table_norm(self) -> component.Config | None:
            return self.norm

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.vocab_size is None:
                yield Problem("", "masked_lm needs a vocab_size in the model: a number or `tokenizer`")
            if self.bias != "frozen":
                yield from check_bias(self.bias, PROJECTIONS)
            if self.tied and self.d_output is not None:
                yield Problem(
                    "d_output",
                    "a tied head has the width of the token table, so d_output has no effect; remove it, or set "
                    "tied: false",
                )
            if not self.tied:  # the width of a tied table is unknown here
                yield from check_norm("norm", self.norm, self.d_output or shape.d_model)

        def biases(self) -> tuple[bool, bool | Literal["frozen"]]:
            """Return the biases of dense and of output."""
            if self.bias == "frozen":
                return True, "frozen"
            return has_bias(self.bias, "dense"), has_bias(self.bias, "output")

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        width, vocab_size, table = self._target(embedding)
        width = config.d_output or width
        dense_bias, output_bias = config.biases()
        inner = replace(shape, d_model=width)
        between = config.d_inner or shape.d_model
        self.inner = None if config.d_inner is None else nn.Linear(shape.d_model, between, bias=dense_bias)
        self.inner_activation = None if config.d_inner is None else config.activation.build(Shape(between))
        self.dense = nn.Linear(between, width, bias=dense_bias)
        self.activation = config.activation.build(inner)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(inner)
        self.output = self._tie(width, vocab_size, output_bias, table)

    def features(self, hidden: Tensor) -> Tensor:
        x = self.dropout(hidden)
        if self.inner is not None and self.inner_activation is not None:
            x = self.inner_activation(self.inner(x))
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out


@register("head", "hidden")
class Hidden(Head):
    """The hidden states themselves, [batch time d_model], for models whose output is vectors."""

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        out: Tensor = self.dropout(hidden)  # [batch time d_model]
        return out


@register("head", "discriminator")
class Discriminator(Head):
    """logit = output(activation(dense(hidden))), one per token (Clark et al. 2020, arXiv 2003.10555)."""

    class Config(Head.Config):
        activation: Activation = part_option("gelu", "activation of dense")

    config: Config

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        self.dense = nn.Linear(shape.d_model, shape.d_model)
        self.activation = config.activation.build(shape)
        self.output = nn.Linear(shape.d_model, 1)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Map [batch time d_model] to [batch time]; above 0 for tokens classified as replaced."""
        logits = self.output(self.activation(self.dense(self.dropout(hidden))))  # [batch time 1]
        out: Tensor = rearrange(logits, "batch time 1 -> batch time")  # [batch time]
        return out


@register("head", "token_classifier")
class TokenClassifier(Head):
    """logits = output(activation(dense(hidden))) per token (Devlin et al. 2018, arXiv 1810.04805: named entities).

    The dense layer exists only with an activation.
    """

    class Config(Head.Config):
        num_classes: Classes = Field(description="number of classes; labels: the number of tags in the training corpus")
        activation: Activation | None = Field(
            None, description="activation of a dense layer before the output; none: no dense layer"
        )
        bias: bool = Field(True, description="add biases to dense and output")

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
        """Map [batch time d_model] to [batch time num_classes]."""
        out: Tensor = self.output(self.activation(self.dense(self.dropout(hidden))))  # [batch time num_classes]
        return out


@register("head", "span")
class SpanHead(Head):
    """logits = output(hidden): scores of each token as start and as end of an answer (Devlin et al. 2018: SQuAD)."""

    class Config(Head.Config):
        bias: bool = Field(
            True, description="add a bias to the output; it has no effect, as it shifts all positions equally"
        )

    config: Config
    inert = frozenset({"output.bias"})

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        super().__init__(config, shape, embedding)
        self.output = nn.Linear(shape.d_model, 2, bias=config.bias)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Map [batch time d_model] to start and end logits, [batch time 2]."""
        out: Tensor = self.output(self.dropout(hidden))  # [batch time 2]
        return out
