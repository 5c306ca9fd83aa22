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
    """logit = 0 for tokens[n] where n are written, -inf for all others (Liu et al. 2020, mBART, arXiv 2001.08210).

    The logit is 0 so that what is certain has the log-probability 0 in a beam search too, which adds up what it gets.
    """

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
        certain = torch.zeros_like(logits).masked_fill(others, NEVER)
        return torch.where((new < len(first))[:, None], certain, logits)
