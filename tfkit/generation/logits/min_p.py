"""Tokens that are likely enough beside the most likely one."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, LogitsRule


@register("logits", "min_p")
class MinP(LogitsRule):
    """logit = -inf where probability < p * the greatest one (Nguyen et al. 2024, arXiv 2407.01082)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of min_p."""

        p: float = Field(gt=0, le=1, description="share of the greatest probability (the paper: 0.05 to 0.1)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        probabilities = logits.softmax(dim=-1)
        least = self.config.p * probabilities.amax(dim=-1, keepdim=True)
        return logits.masked_fill(probabilities < least, NEVER)
