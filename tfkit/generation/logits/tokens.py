"""Rules that require or exclude tokens."""

# Axes: rows (texts), time, vocab. Each forward maps [rows vocab] to the same shape.

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import NonNegativeInt, PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.logits.base import NEVER, PADDING, LogitsRule
from tfkit.generation.tokens import Tokens, end_ids, token_ids


@register("logits", "banned")
class Banned(LogitsRule):
    """logit = -inf for the listed tokens."""

    class Config(LogitsRule.Config):
        tokens: Tokens = Field(description="texts or ids of the excluded tokens")
        at: NonNegativeInt | None = Field(
            None, description="exclude them only as this token, 0: the first; none: always"
        )

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        self.banned = torch.tensor(token_ids(self.config.tokens, tokenizer))

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        self.banned = self.banned.to(logits.device)  # once, as a copy waits for the device
        excluded = logits.index_fill(1, self.banned, NEVER)
        return excluded if self.config.at is None else torch.where((new == self.config.at)[:, None], excluded, logits)


@register("logits", "forced")
class Forced(LogitsRule):
    """logit = 0 for tokens[n] after n written tokens, -inf for all others (Liu et al. 2020, mBART, arXiv 2001.08210).

    With `last`, they are the last tokens of a text that reaches its maximum length.

    Beam search does not normalize after the rules, so the logit 0 gives forced tokens a log-probability of 0.
    """

    class Config(LogitsRule.Config):
        tokens: Tokens = Field(description="texts or ids of the first tokens, in order")
        last: bool = Field(False, description="force the last tokens at the maximum length instead")

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        self.first = torch.tensor(token_ids(self.config.tokens, tokenizer))

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return self.within(logits, ids, new, None)

    def within(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None) -> Tensor:
        first = self.first = self.first.to(logits.device)
        if self.config.last:
            new = torch.full_like(new, -1) if left is None else len(first) - left
        forced = first[new.clamp(0, len(first) - 1)]
        others = torch.arange(logits.shape[1], device=logits.device)[None] != forced[:, None]
        certain = torch.zeros_like(logits).masked_fill(others, NEVER)
        return torch.where(((new >= 0) & (new < len(first)))[:, None], certain, logits)


@register("logits", "min_length")
class MinLength(LogitsRule):
    """logit(end) = -inf for the first `tokens` tokens (Klein et al. 2017, OpenNMT, arXiv 1701.02810)."""

    class Config(LogitsRule.Config):
        tokens: PositiveInt = Field(description="minimum number of tokens before the end token")
        ends: Tokens | None = Field(None, description="texts or ids of the end tokens; none: the tokenizer's end token")
        prompt: bool = Field(False, description="count the tokens of the prompt, too")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if self.ends is None and facts.lacks("end"):
                yield Problem("ends", "the tokenizer has no end token; list the end tokens here")

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        ends = end_ids(self.config.ends, tokenizer)
        if not ends:
            raise UsageError("the tokenizer has no end token; list the end tokens in `ends`")
        self.ends = torch.tensor(ends)

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        self.ends = self.ends.to(logits.device)
        held_back = logits.index_fill(1, self.ends, NEVER)
        written = (ids != PADDING).sum(dim=1) if self.config.prompt else new
        return torch.where((written < self.config.tokens)[:, None], held_back, logits)
