"""Tokens above a probability that falls where the model is unsure."""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, LogitsRule


@register("logits", "eta")
class Eta(LogitsRule):
    """logit = -inf where probability < min(epsilon, sqrt(epsilon) * exp(-entropy)), but for the most likely token.

    Hewitt et al. 2022, arXiv 2210.15191, section 4.2.
    """

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of eta."""

        epsilon: float = Field(gt=0, lt=1, description="the bound where the model is sure (the paper: 0.0003 to 0.004)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        logs = logits.log_softmax(dim=-1)
        probabilities = logs.exp()
        entropy = -(logs * probabilities).nansum(dim=-1, keepdim=True)
        least = (math.sqrt(self.config.epsilon) * (-entropy).exp()).clamp(max=self.config.epsilon)
        unlikely = probabilities < least
        return logits.masked_fill(unlikely & (logits < logits.amax(dim=-1, keepdim=True)), NEVER)
