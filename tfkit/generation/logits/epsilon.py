"""Tokens above a fixed probability."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, LogitsRule


@register("logits", "epsilon")
class Epsilon(LogitsRule):
    """logit = -inf where probability < epsilon, but for the most likely token (Hewitt et al. 2022, 2210.15191, 4.1)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of epsilon."""

        epsilon: float = Field(gt=0, lt=1, description="the least probability (the paper: 0.0003 to 0.0009)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        unlikely = logits.softmax(dim=-1) < self.config.epsilon
        return logits.masked_fill(unlikely & (logits < logits.amax(dim=-1, keepdim=True)), NEVER)
