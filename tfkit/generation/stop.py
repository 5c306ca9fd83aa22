"""Stop rules: a text ends as soon as one of them applies.

| type | purpose |
|---|---|
| end_token | end at the token that marks the end in training; the default |
| strings | end at a string, such as an empty line |
| length | limit all texts below max_new_tokens |
| time | limit the time spent on a text |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import Field

from tfkit.core.component import Component
from tfkit.core.facts import RecipeConfig
from tfkit.core.options import PositiveFloat, PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.prompts import Texts, Tokens, end_ids


@dataclass(frozen=True)
class WrittenRow:
    """A text after a step, as seen by stop rules.

    `ids` are the tokens written after `prompt` (at least one), `seconds` is the elapsed time of the search. `text` is
    decoded on first use.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    seconds: float
    decode: Callable[[Sequence[int], Sequence[int]], str]

    @cached_property
    def text(self) -> str:
        """Text of the written tokens, decoded as a continuation of the prompt."""
        return self.decode(self.prompt, self.ids)


class StopRule(Component):
    """A stop rule. A text ends as soon as one rule applies, or after max_new_tokens."""

    class Config(RecipeConfig):
        """Options of every stop rule."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def bind(self, tokenizer: Tokenizer) -> None:
        """Prepare for a tokenizer; called before `done`. Raise UsageError for unknown tokens."""

    @property
    def most(self) -> int | None:
        """Maximum number of new tokens under this rule; None if unlimited."""
        return None

    def done(self, row: WrittenRow) -> bool:
        """True if the text ends here; called after each token."""
        raise NotImplementedError(f"{type(self).__name__} has no done")

    def cut_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens to keep of a finished text; all by default."""
        return ids

    def cut_text(self, text: str) -> str:
        """Return the text to keep of a finished text; all by default."""
        return text

    def certain(self, text: str) -> str:
        """Return the prefix of an unfinished text that later tokens cannot change, for streaming.

        A rule that cuts texts and does not override this method holds back the whole text until it is finished.
        """
        cuts = type(self).cut_ids is not StopRule.cut_ids or type(self).cut_text is not StopRule.cut_text
        return "" if cuts else text


@register("stop", "end_token")
class EndToken(StopRule):
    """Ends at an end token, which is removed (</s> of Sutskever et al. 2014, arXiv 1409.3215).

    It has no effect if the tokenizer has no end token.
    """

    class Config(StopRule.Config):
        tokens: Tokens | None = Field(
            None, description="texts or ids of the end tokens; none: the tokenizer's end token"
        )

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        self.ends = frozenset(end_ids(self.config.tokens, tokenizer))

    def done(self, row: WrittenRow) -> bool:
        return row.ids[-1] in self.ends

    def cut_ids(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] in self.ends else ids

    def certain(self, text: str) -> str:
        return text


@register("stop", "strings")
class Strings(StopRule):
    """Ends at the first occurrence of any of the strings, across token boundaries; the text is cut before it."""

    class Config(StopRule.Config):
        strings: Texts = Field(description="the strings; the first to appear ends the text")
        keep: bool = Field(False, description="keep the string at the end of the text")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        return any(string in row.text for string in self.config.strings)

    def cut_text(self, text: str) -> str:
        matches = [(text.find(string), len(string)) for string in self.config.strings if string in text]
        if not matches:
            return text
        start, length = min(matches)
        return text[: start + length] if self.config.keep else text[:start]

    def certain(self, text: str) -> str:
        """Hold back a suffix that may be the start of a string."""
        if any(string in text for string in self.config.strings):
            return self.cut_text(text)
        longest = max(map(len, self.config.strings)) - 1
        ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        partial = next((end for end in ends if any(string.startswith(end) for string in self.config.strings)), "")
        return text[: len(text) - len(partial)]


@register("stop", "length")
class Length(StopRule):
    """Ends after `tokens` tokens, or earlier at max_new_tokens."""

    class Config(StopRule.Config):
        tokens: PositiveInt = Field(description="maximum number of new tokens, including an end token")

    config: Config

    @property
    def most(self) -> int:
        return self.config.tokens

    def done(self, row: WrittenRow) -> bool:
        return len(row.ids) >= self.config.tokens


@register("stop", "time")
class Time(StopRule):
    """Ends all texts of a batch `seconds` after its search began."""

    class Config(StopRule.Config):
        seconds: PositiveFloat = Field(description="time limit in seconds, checked after each token")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        return row.seconds >= self.config.seconds
