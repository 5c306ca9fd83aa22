"""A penalty for tokens that occurred before."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.options import Number
from tfkit.core.registry import register
from tfkit.generation.logits.base import LogitsRule, counts, written


@register("logits", "presence_penalty")
class PresencePenalty(LogitsRule):
    """logit - penalty * [count > 0] (OpenAI's API, platform.openai.com/docs/api-reference/completions)."""

    class Config(LogitsRule.Config):
        """Options of presence_penalty."""

        penalty: Number = Field(description="taken off once, however often the token was written")
        prompt: bool = Field(False, description="the tokens of the prompt count too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        found = counts(ids if self.config.prompt else written(ids, new), logits.shape[1])
        return logits - self.config.penalty * (found > 0).to(logits.dtype)
