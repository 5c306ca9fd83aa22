"""Tokens that are never generated."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.logits.base import NEVER, LogitsRule
from tfkit.generation.tokens import Tokens, token_ids


@register("logits", "banned")
class Banned(LogitsRule):
    """logit = -inf for each of the tokens."""

    class Config(LogitsRule.Config):
        """Options of banned."""

        tokens: Tokens = Field(description="texts or ids of single tokens")

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        self.banned = torch.tensor(token_ids(self.config.tokens, tokenizer))

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits.index_fill(1, self.banned.to(logits.device), NEVER)
