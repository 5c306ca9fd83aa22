"""Logits and stop rules of a search, bound to a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tfkit.core.component import Config
from tfkit.core.errors import UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.view import wide
from tfkit.generation.logits import LogitsRule
from tfkit.generation.logits.base import NEVER, misplaced
from tfkit.generation.prompts import before_text, breaks_of, without_token
from tfkit.generation.stop import StopRule, WrittenRow

UNFINISHED = "\ufffd"  # replacement character for invalid bytes
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a byte-fallback token


@dataclass(frozen=True)
class Rules:
    """Logits rules in order, stop rules, and the tokenizer that decodes texts. Empty by default."""

    logits: Sequence[LogitsRule] = ()
    stop: Sequence[StopRule] = ()
    tokenizer: Tokenizer | None = None
    _never: dict[int, Tensor | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def scores(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None = None) -> Tensor:
        """Apply the rules to logits [rows vocab] in float32 or float64; LogitsRule.within explains the arguments.

        Ids that the tokenizer does not have are masked.
        """
        logits = self._of_tokens(wide(logits))
        for rule in self.logits:
            changed = rule.within(logits, ids, new, left)
            if not isinstance(changed, Tensor) or changed.shape != logits.shape:
                got = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise UsageError(
                    f"the logits rule '{rule.part_name}' returned {got}, expected logits {list(logits.shape)}"
                )
            logits = self._of_tokens(changed)
        return logits

    def _of_tokens(self, logits: Tensor) -> Tensor:
        """Mask the logits of ids without a token."""
        size = logits.shape[1]
        if size not in self._never:
            self._never[size] = None if self.tokenizer is None else without_token(self.tokenizer, size)
        never = self._never[size]
        return logits if never is None else logits.masked_fill(never.to(logits.device), NEVER)

    def check(self, prompts: Sequence[Sequence[int]], room: Sequence[int]) -> None:
        """Raise UsageError if no allowed text fits into the `room` [tokens] of a prompt."""
        for rule in self.logits:
            for prompt, most in zip(prompts, room, strict=True):
                rule.check(prompt, most)

    @property
    def bounds(self) -> list[int]:
        """Maximum numbers of new tokens set by stop rules."""
        return [rule.most for rule in self.stop if rule.most is not None]

    def complete(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        return all(rule.complete(prompt, ids) for rule in self.logits)

    def done(self, prompt: Sequence[int], ids: Sequence[int], seconds: float) -> bool:
        """True if a stop rule ends the text after the new tokens `ids`."""
        row = WrittenRow(prompt, ids, seconds, self._decode)
        return any(rule.done(row) for rule in self.stop)

    def cut(self, ids: Sequence[int]) -> list[int]:
        """Return `ids` without the tokens that stop rules cut off."""
        for rule in self.stop:
            ids = rule.cut_ids(ids)
        return list(ids)

    def text(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of the new tokens `ids` after `prompt`, cut by the stop rules."""
        text = self._decode(prompt, ids)
        for rule in self.stop:
            text = rule.cut_text(text)
        return text

    def certain(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the prefix of the text that later tokens cannot change, for streaming.

        Incomplete characters are held back.
        """
        kept = self.cut(ids)
        while kept and self.tokenizer is not None and _may_join_next(self.tokenizer, kept[-1]):
            kept.pop()
        text = self._decode(prompt, kept).rstrip(UNFINISHED)
        for rule in self.stop:
            text = rule.certain(text)
        return text

    def _decode(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Decode `ids` as a continuation of the prompt, including a leading space if there is one."""
        if self.tokenizer is None:
            raise UsageError("a rule needs the text, but this search has no tokenizer")
        prompt = before_text(prompt, breaks_of(self.tokenizer))
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *ids])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(ids)


def _may_join_next(tokenizer: Tokenizer, id_: int) -> bool:
    """True for byte-fallback tokens, decoded together with the next, and for special tokens, which are skipped."""
    if id_ in tokenizer.special_ids.values():
        return True
    return id_ < tokenizer.vocab_size and BYTE.fullmatch(tokenizer.backend.id_to_token(id_) or "") is not None


def bound_rules(logits: Sequence[Config], stop: Sequence[Config], tokenizer: Tokenizer) -> Rules:
    """Build the configured rules and bind them to the tokenizer. Raise UsageError if one does not fit."""
    parts = [config.part for config in logits]
    for place in range(len(parts)):
        if (conflict := misplaced(parts, place)) is not None:
            raise UsageError(f"generate.logits: {conflict}")
    return Rules(
        [_bound(config, tokenizer) for config in logits], [_bound(config, tokenizer) for config in stop], tokenizer
    )


def _bound(config: Config, tokenizer: Tokenizer) -> Any:
    rule: LogitsRule | StopRule = config.build()
    try:
        rule.bind(tokenizer)
    except UsageError as error:
        raise UsageError(f"generate.{rule.part_slot}: {rule.part_name}: {error}") from None
    return rule
