"""The head of BERT: the tokens that were masked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import TokenHead
from tfkit.core import component
from tfkit.core.component import Problem
from tfkit.core.options import Activation, Bias, Norm, Width, check_bias, check_norm, has_bias
from tfkit.core.registry import register
from tfkit.core.shape import Shape

PROJECTIONS = ("dense", "output")


@register("head", "masked_lm")
class MaskedLM(TokenHead):
    """logits = output(norm(activation(dense(hidden)))) (Devlin et al. 2018, arXiv 1810.04805).

    When tied to a factorised table, dense maps to the table's width.
    """

    class Config(TokenHead.Config):
        activation: Activation = Field("gelu", description="after dense")  # type: ignore[assignment]
        norm: Norm | None = Field(  # type: ignore[assignment]
            "layer_norm", description="after the activation; left out in a recipe: the stack's norm"
        )
        d_output: Width | None = Field(
            None, description="width of dense and of what output reads; none: d_model (RemBERT)"
        )
        bias: Bias | Literal["frozen"] = Field(
            True, description="biases: all, none, or of dense or output; frozen: both, and output's never trained"
        )

        def table_norm(self) -> component.Config | None:
            return self.norm

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.vocab_size is None:
                yield Problem("", "masked_lm needs a vocab_size in the model: a number, or `tokenizer`")
            for option, message in () if self.bias == "frozen" else check_bias(self.bias, PROJECTIONS):
                yield Problem(option, message)
            if self.tied and self.d_output is not None:
                yield Problem("d_output", "a tied head has the width of the token table")
            if not self.tied:  # a tied one has the width of a table that is not known here
                yield from check_norm("norm", self.norm, self.d_output or shape.d_model)

        def biases(self) -> tuple[bool, bool | Literal["frozen"]]:
            """Of dense and of output."""
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
        self.dense = nn.Linear(shape.d_model, width, bias=dense_bias)
        self.activation = config.activation.build(inner)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(inner)
        self.output = self._tie(width, vocab_size, output_bias, table)

    def features(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.dense(self.dropout(hidden))))
        return out
