"""A penalty for each time that a token occurred before."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.options import Number
from tfkit.core.registry import register
from tfkit.generation.logits.base import LogitsRule, counts, written


@register("logits", "frequency_penalty")
class FrequencyPenalty(LogitsRule):
    """logit - penalty * count (OpenAI's API, platform.openai.com/docs/api-reference/completions)."""

    class Config(LogitsRule.Config):
        """Options of frequency_penalty."""

        penalty: Number = Field(description="taken off for each time that the token was written")
        prompt: bool = Field(False, description="the tokens of the prompt count too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        found = counts(ids if self.config.prompt else written(ids, new), logits.shape[1])
        return logits - self.config.penalty * found.to(logits.dtype)
