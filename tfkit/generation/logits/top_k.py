"""The k most likely tokens."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.largest import topk
from tfkit.generation.logits.base import NEVER, LogitsRule


@register("logits", "top_k")
class TopK(LogitsRule):
    """logit = -inf for all but the k most likely tokens (Fan et al. 2018, arXiv 1805.04833); ties stay."""

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of top_k."""

        k: PositiveInt = Field(description="tokens that are left to draw from (GPT-2's samples: 40)")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            size = min((size for size in (facts.vocab_size, facts.most_tokens) if size is not None), default=None)
            if size is not None and self.k > size:
                yield Problem("k", f"{self.k} is more than the {size} tokens of the vocabulary")

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        if self.config.k > tokenizer.vocab_size:
            raise UsageError(f"k: {self.config.k} is more than the {tokenizer.vocab_size} tokens of the vocabulary")

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        least = topk(logits, self.config.k)[0][:, -1:]
        return logits.masked_fill(logits < least, NEVER)
