"""Rules against repetition."""

# Axes: rows (texts), time, grams (n-grams of a text), size (tokens of an n-gram), vocab.
# Each forward maps [rows vocab] to the same shape.

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.options import Number, PositiveFloat, PositiveInt
from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, PADDING, LogitsRule, counts, written


@register("logits", "repetition_penalty")
class RepetitionPenalty(LogitsRule):
    """logit / penalty for tokens of the text; logit * penalty if negative (Keskar et al. 2019, arXiv 1909.05858, 4.1).

    The paper always divides, which rewards repetition of tokens with negative logits.
    """

    class Config(LogitsRule.Config):
        penalty: PositiveFloat = Field(
            description="above 1 discourages repetition (the paper: 1.2), below 1 encourages it"
        )
        prompt: bool = Field(True, description="count the tokens of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        seen = counts(ids if self.config.prompt else written(ids, new), logits.shape[1]) > 0
        penalty = self.config.penalty
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


@register("logits", "frequency_penalty")
class FrequencyPenalty(LogitsRule):
    """logit - penalty * count (OpenAI's API, platform.openai.com/docs/api-reference/completions)."""

    class Config(LogitsRule.Config):
        penalty: Number = Field(description="subtracted once per occurrence of the token")
        prompt: bool = Field(False, description="count the tokens of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        occurrences = counts(ids if self.config.prompt else written(ids, new), logits.shape[1])
        return logits - self.config.penalty * occurrences.to(logits.dtype)


@register("logits", "presence_penalty")
class PresencePenalty(LogitsRule):
    """logit - penalty * [count > 0] (OpenAI's API, platform.openai.com/docs/api-reference/completions)."""

    class Config(LogitsRule.Config):
        penalty: Number = Field(description="subtracted once if the token has appeared")
        prompt: bool = Field(False, description="count the tokens of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        occurrences = counts(ids if self.config.prompt else written(ids, new), logits.shape[1])
        return logits - self.config.penalty * (occurrences > 0).to(logits.dtype)


@register("logits", "no_repeat_ngram")
class NoRepeatNgram(LogitsRule):
    """logit = -inf for tokens that repeat an n-gram of the text (Paulus et al. 2017, arXiv 1705.04304, 2.5)."""

    class Config(LogitsRule.Config):
        size: PositiveInt = Field(description="length of an n-gram in tokens (the paper: 3)")
        prompt: bool = Field(True, description="forbid the n-grams of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        size = self.config.size
        text = ids if self.config.prompt else written(ids, new)
        if text.shape[1] < size:
            return logits
        grams = text.unfold(1, size, 1)  # [rows grams size]
        prefix = text[:, text.shape[1] - size + 1 :]  # [rows size-1], the tokens before the next one
        again = (grams[..., :-1] == prefix[:, None]).all(dim=2) & (prefix != PADDING).all(dim=1)[
            :, None
        ]  # [rows grams]
        ends = grams[..., -1].masked_fill(~again, PADDING)  # [rows grams]
        return logits.masked_fill(counts(ends, logits.shape[1]) > 0, NEVER)
