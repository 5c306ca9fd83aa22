"""Base class of the logits rules, which modify the scores of the next token; required and excluded tokens."""

# Axes: rows (texts), time, vocab. Each forward maps [rows vocab] to the same shape.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.component import Component, Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.options import NonNegativeInt, PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.prompts import Tokens, end_ids, token_ids

PADDING = -1  # id before the first token of a row
NEVER = float("-inf")  # logit of an excluded token


class LogitsRule(Component):
    """Base class of logits rules. Rules are applied in order, each to the output of the previous rule.

    The result for a row depends only on its own tokens, and inputs are never modified in place.
    """

    of_sampling: ClassVar[bool] = False  # True if the rule shapes a distribution and needs a sampling strategy
    constrains: ClassVar[bool] = False  # True if the rule restricts texts; no earlier rule may exclude its tokens

    class Config(RecipeConfig):
        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            parts = [config.part for config in facts.logits]
            conflict = misplaced(parts, next(place for place, rule in enumerate(facts.logits) if rule is self))
            if conflict is not None:
                yield Problem("", conflict)

    def __init__(self, config: Config) -> None:
        self.config = config

    def bind(self, tokenizer: Tokenizer) -> None:
        """Prepare for a tokenizer; called before `forward`. Raise UsageError for unknown tokens."""

    def check(self, prompt: Sequence[int], room: int) -> None:
        """Raise UsageError if no allowed text fits into `room` tokens after the prompt, before anything is computed."""

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        """Map float32 `logits` of the next token [rows vocab] to new logits.

        `ids` [rows time] has the prompt and the written tokens of each row, left-padded with PADDING; `new` [rows] is
        the number of written tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def within(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None) -> Tensor:
        """Apply `forward` if at most `left` [rows] tokens may follow, the next token included; None if unknown."""
        return self.forward(logits, ids, new)

    def complete(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """True if the rule accepts the new tokens `ids` as a complete text."""
        return True


def misplaced(rules: Sequence[type[Any]], place: int) -> str | None:
    """Return the fault if an earlier rule could exclude all tokens that the rule at `place` allows, or None."""
    rule = rules[place]
    others = [other for other in rules[:place] if other.of_sampling or other.constrains]
    if not rule.constrains or not others:
        return None
    what = f"{rule.part_name} comes after {others[0].part_name}, which"
    if others[0].constrains:
        return f"{what} already constrains the text; keep one of the two"
    return f"{what} may exclude every token that {rule.part_name} allows; list {rule.part_name} first"


def written(ids: Tensor, new: Tensor) -> Tensor:
    """Return `ids` with the prompt replaced by PADDING, [rows time]."""
    time = ids.shape[1]
    prompt = torch.arange(time, device=ids.device)[None] < time - new[:, None]
    return ids.masked_fill(prompt, PADDING)


def counts(ids: Tensor, vocab_size: int) -> Tensor:
    """Count each token in each row, [rows vocab], ignoring PADDING."""
    result = torch.zeros(ids.shape[0], vocab_size + 1, dtype=torch.long, device=ids.device)
    # PADDING is counted in an extra first column, which is dropped
    return result.scatter_add(1, ids + 1, torch.ones_like(ids))[:, 1:]


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
