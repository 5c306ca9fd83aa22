"""The head of models that write: the next token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.head.base import TokenHead
from tfkit.core.component import Problem
from tfkit.core.options import PositiveFloat, Scale, scale_factor
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("head", "language_model")
class LanguageModel(TokenHead):
    """logits = output(scale * hidden), tied to the token table or not (Press and Wolf 2016, arXiv 1608.05859).

    A tied table of another width than d_model is reached through a projection without bias.
    """

    class Config(TokenHead.Config):
        bias: bool | Literal["frozen"] = Field(
            False, description="a bias; frozen: a constant that counts as no parameter (BART)"
        )
        scale: Scale = Field(None, description="factor on the hidden states (T5: 1/sqrt_d_model)")
        softcap: PositiveFloat | None = Field(None, description="c in c * tanh(logits / c); none: no cap (Gemma 2: 30)")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.vocab_size is None:
                yield Problem("", "language_model needs a vocab_size in the model: a number, or `tokenizer`")

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
