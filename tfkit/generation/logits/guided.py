"""Rules that constrain the format of a text."""

# Axes: rows (texts), time, vocab. Each forward maps [rows vocab] to the same shape.

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn import functional

from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.constraint import check_pattern, guide_of, literal
from tfkit.generation.logits.base import NEVER, LogitsRule
from tfkit.generation.prompts import Texts, Tokens, before_text, breaks_of, end_ids


class Guided(LogitsRule):
    """logit = -inf for tokens that cannot lead to an allowed text.

    The text is the decoded output after the prompt, without special tokens. End tokens are allowed after a complete
    text; without an end token, the text ends when no token is allowed. The last 64 tokens before max_new_tokens are
    used only if the rest of an allowed text has at most as many characters, if there is one.
    """

    constrains: ClassVar[bool] = True

    class Config(LogitsRule.Config):
        ends: Tokens | None = Field(None, description="texts or ids of the end tokens; none: the tokenizer's end token")

    config: Config

    def pattern(self) -> str:
        """Return the pattern of the allowed texts."""
        raise NotImplementedError(f"{type(self).__name__} has no pattern")

    def bind(self, tokenizer: Tokenizer) -> None:
        self.breaks = breaks_of(tokenizer)
        self.guide = guide_of(self.pattern(), tokenizer, frozenset(end_ids(self.config.ends, tokenizer)))

    def check_begin(self, first: bool) -> None:
        """Raise UsageError if no allowed text can start at the beginning (`first`) or after a prompt."""
        if not self.guide.begins[first]:
            raise self.unwritable("no allowed text can", first)

    def unwritable(self, what: str, first: bool) -> UsageError:
        """Return the error for a text that the vocabulary cannot write."""
        where = "at the beginning" if first else "after a prompt"
        other = "remove the leading space from" if first else "add a leading space to"
        return UsageError(
            f"generate.logits: {self.part_name}: {what} be written {where} with this vocabulary; "
            f"if the tokens include the space before a word, {other} the allowed texts"
        )

    def check(self, prompt: Sequence[int], room: int) -> None:
        with self.guide.lock:
            first = self._first(prompt)
            self.check_begin(first)
            if (needs := self.fewest(first)) > room:
                raise UsageError(
                    f"generate.logits: {self.part_name}: the shortest allowed text takes {needs} tokens, but the "
                    f"limit is {room}; raise max_new_tokens"
                )

    def fewest(self, first: bool) -> int:
        """Return a lower bound on the tokens of an allowed text."""
        return self.guide.needs(first)

    def complete(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        with self.guide.lock:
            return self.guide.complete(self._first(prompt), ids)

    def _first(self, prompt: Sequence[int]) -> bool:
        """True if nothing visible precedes the text."""
        return not self.guide.visible(before_text(prompt, self.breaks))

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return self.within(logits, ids, new, None)

    def within(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None) -> Tensor:
        room = [None] * len(ids) if left is None else left.tolist()
        rows = []
        with self.guide.lock:
            for text, count, most in zip(ids.tolist(), new.tolist(), room, strict=True):
                start = len(text) - count
                rows.append(self.guide.allowed(self._first(text[:start]), text[start:], most))
        allowed = torch.stack(rows).to(logits.device)
        beyond = logits.shape[1] - allowed.shape[1]  # the model's vocabulary may be padded beyond the tokenizer's
        return logits.masked_fill(~functional.pad(allowed, (0, beyond)), NEVER)


def _compiles(pattern: str) -> str:
    with contextlib.suppress(UsageError):  # a missing library is reported when the rule is bound
        check_pattern(pattern)
    return pattern


@register("logits", "regex")
class Regex(Guided):
    """logit = -inf for tokens after which the whole text cannot match (Willard and Louf 2023, arXiv 2307.09702).

    Needs the extra `constrain` (the library llguidance).
    """

    class Config(Guided.Config):
        pattern: Annotated[str, AfterValidator(_compiles)] = Field(
            description="pattern of the whole text, in Python's syntax without lookaround, backreferences and {,n}; "
            "sets and classes as in the regex library of Rust"
        )

    config: Config

    def pattern(self) -> str:
        return self.config.pattern


@register("logits", "choices")
class Choices(Guided):
    """logit = -inf for tokens that lead to none of the texts (De Cao et al. 2021, arXiv 2010.00904).

    Needs the extra `constrain` (the library llguidance).
    """

    class Config(Guided.Config):
        choices: Texts = Field(
            description="the allowed texts as they follow the prompt, including a leading space if there is one"
        )

    config: Config

    def pattern(self) -> str:
        return "|".join(map(literal, self.config.choices))

    def bind(self, tokenizer: Tokenizer) -> None:
        super().bind(tokenizer)
        choices, writes = self.config.choices, self.guide.writes
        self.missing = {first: [text for text in choices if not writes(text, first)] for first in (True, False)}
        nowhere = [text for text in self.missing[True] if text in self.missing[False]]
        if nowhere:
            raise UsageError(f"{nowhere[0]!r} cannot be written with this vocabulary")

    def fewest(self, first: bool) -> int:
        return -(-min(map(len, self.config.choices)) // self.guide.longest)

    def check_begin(self, first: bool) -> None:
        if self.missing[first]:
            raise self.unwritable(f"the choice {self.missing[first][0]!r} cannot", first)
