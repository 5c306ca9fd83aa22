"""Base class of the logits rules, which modify the scores of the next token."""

# Axes: rows (texts), time, vocab. Each forward maps [rows vocab] to the same shape.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tfkit.core.component import Component, Problem
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.data.tokenizer import Tokenizer

PADDING = -1  # id before the first token of a row
NEVER = float("-inf")  # logit of an excluded token


class LogitsRule(Component):
    """Base class of logits rules. Rules are applied in order, each to the output of the previous rule.

    The result for a row depends only on its own tokens, and inputs are never modified in place.
    """

    of_sampling: ClassVar[bool] = False  # True if the rule shapes a distribution and needs a sampling strategy
    constrains: ClassVar[bool] = False  # True if the rule restricts texts; no earlier rule may exclude its tokens

    class Config(RecipeConfig):
        """Options of every logits rule."""

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
