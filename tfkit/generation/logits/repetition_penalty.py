"""The repetition penalty of CTRL."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.generation.logits.base import LogitsRule, counts, written


@register("logits", "repetition_penalty")
class RepetitionPenalty(LogitsRule):
    """logit / penalty, or * penalty below 0, for what stands in the text (Keskar et al. 2019, arXiv 1909.05858, 4.1).

    Keskar et al. 2019 divide whatever the sign; a negative logit would then be rewarded, hence the product.
    """

    class Config(LogitsRule.Config):
        """Options of repetition_penalty."""

        penalty: PositiveFloat = Field(description="above 1 keeps from repeating (the paper: 1.2), below 1 invites it")
        prompt: bool = Field(True, description="the tokens of the prompt count too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        seen = counts(ids if self.config.prompt else written(ids, new), logits.shape[1]) > 0
        penalty = self.config.penalty
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
