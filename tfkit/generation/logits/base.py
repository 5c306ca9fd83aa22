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

PADDING = -1  # in `ids`, before a row's first token
NEVER = float("-inf")  # logit of an excluded token


class LogitsRule(Component):
    """Base of logits rules. Rules are applied in order, each to the output of the one before it.

    A row depends on its own tokens alone, and inputs are never modified in place.
    """

    of_sampling: ClassVar[bool] = False  # it shapes a distribution and needs a sampling strategy
    constrains: ClassVar[bool] = False  # it restricts texts; no other rule may exclude its tokens

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
        """Read the tokenizer before the first `forward`. Raise UsageError for tokens that it lacks."""

    def check(self, prompt: Sequence[int], room: int) -> None:
        """Raise UsageError, before computing, if no allowed text of `room` tokens can follow the prompt."""

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        """Return new logits [rows vocab] of the next token, from float32 `logits` [rows vocab].

        `ids` [rows time] are each row's prompt and written tokens, left-padded with PADDING; `new` [rows] counts the
        written ones.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def within(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None) -> Tensor:
        """Apply `forward` with at most `left` [rows] tokens still to come, including the next; None if unknown."""
        return self.forward(logits, ids, new)

    def complete(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """True if the new tokens `ids` are a complete allowed text, not just the beginning of one."""
        return True


def misplaced(rules: Sequence[type[Any]], place: int) -> str | None:
    """Return why an earlier rule could exclude all tokens that this one allows, or None."""
    rule = rules[place]
    others = [other for other in rules[:place] if other.of_sampling or other.constrains]
    if not rule.constrains or not others:
        return None
    what = f"{rule.part_name} comes after {others[0].part_name}, which"
    if others[0].constrains:
        return f"{what} constrains the text already; keep one of the two"
    return f"{what} may exclude every token that it allows; list {rule.part_name} first"


def written(ids: Tensor, new: Tensor) -> Tensor:
    """Return `ids` with the prompt replaced by PADDING, [rows time]."""
    time = ids.shape[1]
    prompt = torch.arange(time, device=ids.device)[None] < time - new[:, None]
    return ids.masked_fill(prompt, PADDING)


def counts(ids: Tensor, vocab_size: int) -> Tensor:
    """Count each token in each row, [rows vocab], ignoring PADDING."""
    result = torch.zeros(ids.shape[0], vocab_size + 1, dtype=torch.long, device=ids.device)
    # padding is counted in an extra first column, which is dropped
    return result.scatter_add(1, ids + 1, torch.ones_like(ids))[:, 1:]
