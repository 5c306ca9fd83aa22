"""No n-gram twice."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, PADDING, LogitsRule, counts, written


@register("logits", "no_repeat_ngram")
class NoRepeatNgram(LogitsRule):
    """logit = -inf for what would end an n-gram that the text holds (Paulus et al. 2017, arXiv 1705.04304, 2.5)."""

    class Config(LogitsRule.Config):
        """Options of no_repeat_ngram."""

        size: PositiveInt = Field(description="tokens of an n-gram (the paper: 3)")
        prompt: bool = Field(True, description="n-grams of the prompt may not return either")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        size = self.config.size
        text = ids if self.config.prompt else written(ids, new)
        if text.shape[1] < size:
            return logits
        grams = text.unfold(1, size, 1)  # [rows grams size]
        begun = text[:, text.shape[1] - size + 1 :]  # the n - 1 tokens that the next one would complete
        again = (grams[..., :-1] == begun[:, None]).all(dim=2) & (begun != PADDING).all(dim=1)[:, None]
        ends = grams[..., -1].masked_fill(~again, PADDING)
        return logits.masked_fill(counts(ends, logits.shape[1]) > 0, NEVER)
