"""The rules of a search, bound to a tokenizer: what it asks at each step, whatever way it chooses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tfkit.core.component import Config
from tfkit.core.errors import UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.precision import wide
from tfkit.generation.logits import LogitsRule
from tfkit.generation.logits.base import NEVER, misplaced
from tfkit.generation.stop import StopRule, WrittenRow
from tfkit.generation.tokens import before_text, breaks_of, without_token

UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are no character
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a token of one byte, for what the vocabulary has no piece of


@dataclass(frozen=True)
class Rules:
    """Logits rules in their order, stop rules, and the tokenizer that makes texts; without rules nothing is changed."""

    logits: Sequence[LogitsRule] = ()
    stop: Sequence[StopRule] = ()
    tokenizer: Tokenizer | None = None
    _never: dict[int, Tensor | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def scores(self, logits: Tensor, ids: Tensor, new: Tensor, left: Tensor | None = None) -> Tensor:
        """Apply the rules to logits [rows vocab], in float32 or float64; the arguments are those of LogitsRule.within.

        A model may have more ids than its tokenizer has tokens: the others come never, whatever the rules say.
        """
        logits = self._of_tokens(wide(logits))
        for rule in self.logits:
            changed = rule.within(logits, ids, new, left)
            if not isinstance(changed, Tensor) or changed.shape != logits.shape:
                got = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise UsageError(f"the logits rule '{rule.part_name}' gave {got}, expected logits {list(logits.shape)}")
            logits = self._of_tokens(changed)
        return logits

    def _of_tokens(self, logits: Tensor) -> Tensor:
        """The logits without those of ids that no token has."""
        size = logits.shape[1]
        if size not in self._never:
            self._never[size] = None if self.tokenizer is None else without_token(self.tokenizer, size)
        never = self._never[size]
        return logits if never is None else logits.masked_fill(never.to(logits.device), NEVER)

    def check(self, prompts: Sequence[Sequence[int]], room: Sequence[int]) -> None:
        """Raise UsageError for a prompt after which the rules allow no text of so many tokens as there is room for."""
        for rule in self.logits:
            for prompt, most in zip(prompts, room, strict=True):
                rule.check(prompt, most)

    @property
    def bounds(self) -> list[int]:
        """How many tokens each stop rule that counts them lets be written."""
        return [rule.most for rule in self.stop if rule.most is not None]

    def complete(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether the new tokens `ids` are all of a text that the rules allow, not the beginning of one."""
        return all(rule.complete(prompt, ids) for rule in self.logits)

    def done(self, prompt: Sequence[int], ids: Sequence[int], seconds: float) -> bool:
        """Whether a rule ends the text whose new tokens are `ids`."""
        row = WrittenRow(prompt, ids, seconds, self._decode)
        return any(rule.done(row) for rule in self.stop)

    def cut(self, ids: Sequence[int]) -> list[int]:
        """The new tokens that belong to a text."""
        for rule in self.stop:
            ids = rule.cut_ids(ids)
        return list(ids)

    def text(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """What is given out for the new tokens `ids` that stand after `prompt`."""
        text = self._decode(prompt, ids)
        for rule in self.stop:
            text = rule.cut_text(text)
        return text

    def certain(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """What of the text of `ids` will be given out whatever tokens follow them, so that a stream may show it.

        Half a character is not certain: a byte, or the sign that stands for bytes which are no character yet.
        """
        kept = self.cut(ids)
        while kept and self.tokenizer is not None and _is_byte(self.tokenizer, kept[-1]):
            kept.pop()
        text = self._decode(prompt, kept).rstrip(UNFINISHED)
        for rule in self.stop:
            text = rule.certain(text)
        return text

    def _decode(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """The text of `ids` as it stands after the prompt: a space between the two belongs to it."""
        if self.tokenizer is None:
            raise UsageError("a rule reads the text, and this search has no tokenizer")
        prompt = before_text(prompt, breaks_of(self.tokenizer))
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *ids])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(ids)


def _is_byte(tokenizer: Tokenizer, id_: int) -> bool:
    """Whether a token stands for one byte of a character, which a decoder joins with those around it."""
    return id_ < tokenizer.vocab_size and BYTE.fullmatch(tokenizer.backend.id_to_token(id_) or "") is not None


def bound_rules(logits: Sequence[Config], stop: Sequence[Config], tokenizer: Tokenizer) -> Rules:
    """The rules that these options describe; raises UsageError naming the rule that cannot go with the tokenizer."""
    _check_order([config.part for config in logits])
    return Rules(
        [_bound(config, tokenizer) for config in logits], [_bound(config, tokenizer) for config in stop], tokenizer
    )


def _check_order(parts: Sequence[Any]) -> None:
    """Raise UsageError where a rule could forbid all that a rule of certain texts allows, so that none is completed."""
    for place in range(len(parts)):
        found = misplaced(parts, place)
        if found is not None:
            raise UsageError(f"generate.logits: {found}")


def _bound(config: Config, tokenizer: Tokenizer) -> Any:
    rule: LogitsRule | StopRule = config.build()
    try:
        rule.bind(tokenizer)
    except UsageError as error:
        raise UsageError(f"generate.{rule.part_slot}: {rule.part_name}: {error}") from None
    return rule
