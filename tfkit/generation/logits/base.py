"""Base of the logits rules: what changes the scores of the next token before one is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tfkit.core.component import Component, Problem
from tfkit.core.component import Config as PartConfig
from tfkit.core.facts import RecipeFacts
from tfkit.data.tokenizer import Tokenizer

PADDING = -1  # what stands in `ids` before a row's first token
NEVER = float("-inf")  # the logit of a token that may not come next


class LogitsRule(Component):
    """A rule. Rules are applied in the order they are listed in, each to the logits that the one before it gave.

    A row is changed by its own tokens alone, and what is given is never changed in place.
    """

    of_sampling: ClassVar[bool] = False  # whether it shapes what is drawn, so that it needs a strategy that draws
    constrains: ClassVar[bool] = False  # whether it lets only certain texts come, so that others may not forbid them

    class Config(PartConfig):
        """Options of every logits rule."""

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            parts = [config.part for config in facts.logits]
            found = misplaced(parts, next(place for place, rule in enumerate(facts.logits) if rule is self))
            if found is not None:
                yield Problem("", found)

    def __init__(self, config: Config) -> None:
        self.config = config

    def bind(self, tokenizer: Tokenizer) -> None:
        """Take the facts of the tokenizer, before the first `forward`; raises UsageError for tokens that it lacks."""

    def check(self, prompt: Sequence[int], room: int) -> None:
        """Raise UsageError, before anything is computed, where it allows no text of `room` tokens after a prompt."""

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        """New logits [rows vocab] of the token that comes next, from `logits` [rows vocab], which are float32.

        `ids` [rows time] are each row's own prompt and what was written after it, PADDING before them; `new` [rows]
        says how many of the last ones were written.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def within(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None) -> Tensor:
        """`forward` where at most `left` [rows] tokens may still be written, the next included; None: nobody knows."""
        return self.forward(logits, ids, new)

    def complete(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether the new tokens `ids` after a prompt are all of a text that it allows, not the beginning of one."""
        return True


def misplaced(rules: Sequence[type[Any]], place: int) -> str | None:
    """Why the rule at that place could be left without a token by those before it; None where it could not."""
    rule = rules[place]
    others = [other for other in rules[:place] if other.of_sampling or other.constrains]
    if not rule.constrains or not others:
        return None
    what = f"{rule.part_name} stands after {others[0].part_name}, which"
    if others[0].constrains:
        return f"{what} allows other texts; there is one rule of that kind"
    return f"{what} may leave none of the tokens that it allows; list {rule.part_name} first"


def written(ids: Tensor, new: Tensor) -> Tensor:
    """`ids` with PADDING in place of the prompt, [rows time]."""
    time = ids.shape[1]
    prompt = torch.arange(time, device=ids.device)[None] < time - new[:, None]
    return ids.masked_fill(prompt, PADDING)


def counts(ids: Tensor, vocab_size: int) -> Tensor:
    """How often each token stands in each row, [rows vocab]; PADDING counts for nothing."""
    found = torch.zeros(ids.shape[0], vocab_size + 1, dtype=torch.long, device=ids.device)
    # padding goes into a column of its own, the first, which is left out
    return found.scatter_add(1, ids + 1, torch.ones_like(ids))[:, 1:]
