"""Base of the stop rules: when a text is done, and what of its end is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tfkit.core.component import Component
from tfkit.core.component import Config as PartConfig
from tfkit.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class WrittenRow:
    """One text as it stands after a step: all that a stop rule may look at, so that rows cannot disturb each other.

    `prompt` is what it began with, `ids` what was written after it (at least one token), `seconds` how long the search
    has been writing. `text` is made of `ids` when a rule first asks for it.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    seconds: float
    decode: Callable[[Sequence[int], Sequence[int]], str]

    @cached_property
    def text(self) -> str:
        """The text that was written, as it stands after the prompt."""
        return self.decode(self.prompt, self.ids)


class StopRule(Component):
    """A rule. A text is done as soon as one rule says so, and whenever max_new_tokens are written."""

    class Config(PartConfig):
        """Options of every stop rule."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def bind(self, tokenizer: Tokenizer) -> None:
        """Take the facts of the tokenizer, before the first `done`; raises UsageError for tokens that it lacks."""

    @property
    def most(self) -> int | None:
        """How many tokens it lets be written at most; None: as many as there is room for."""
        return None

    def done(self, row: WrittenRow) -> bool:
        """Whether the text ends with the token that was written last; asked after each."""
        raise NotImplementedError(f"{type(self).__name__} has no done")

    def cut_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """What of the tokens of a finished row belongs to the text; all, unless the rule says otherwise."""
        return ids

    def cut_text(self, text: str) -> str:
        """What of the text of a finished row is given out; all, unless the rule says otherwise."""
        return text

    def certain(self, text: str) -> str:
        """What of a text that may go on or be finished is given out whatever follows it: what a stream may show.

        A rule that cuts and says nothing here keeps all of it back until the row is finished.
        """
        cuts = type(self).cut_ids is not StopRule.cut_ids or type(self).cut_text is not StopRule.cut_text
        return "" if cuts else text
