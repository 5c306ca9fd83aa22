"""Tokens that a text begins with."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.logits.base import NEVER, LogitsRule
from tfkit.generation.tokens import Tokens, token_ids


@register("logits", "forced")
class Forced(LogitsRule):
    """logit = -inf for all tokens but tokens[n] where n are written (Liu et al. 2020, mBART, arXiv 2001.08210)."""

    class Config(LogitsRule.Config):
        """Options of forced."""

        tokens: Tokens = Field(description="texts or ids of the tokens that are written first, in their order")

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        self.first = torch.tensor(token_ids(self.config.tokens, tokenizer))

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        first = self.first.to(logits.device)
        wanted = first[new.clamp(max=len(first) - 1)]
        others = torch.arange(logits.shape[1], device=logits.device)[None] != wanted[:, None]
        return logits.masked_fill(others & (new < len(first))[:, None], NEVER)
