"""Stop rules: when a text is done. A text ends as soon as one of the rules says so.

| type | choose it when |
|---|---|
| end_token | the model has learned where its texts end; the default |
| strings | a text ends where it says something, such as an empty line |
| length | all texts are to be short, whatever max_new_tokens allows |
| time | an answer must come in time |
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
from tfkit.generation.tokens import Texts, Tokens, end_ids


@dataclass(frozen=True)
class WrittenRow:
    """A text after a step, as seen by stop rules, one row at a time.

    `prompt` is its beginning, `ids` are the tokens written after it (at least one), `seconds` is the elapsed time of
    the search. `text` is decoded on first use.
    """

    prompt: Sequence[int]
    ids: Sequence[int]
    seconds: float
    decode: Callable[[Sequence[int], Sequence[int]], str]

    @cached_property
    def text(self) -> str:
        """The written text, decoded after its prompt."""
        return self.decode(self.prompt, self.ids)


class StopRule(Component):
    """A stop rule. A text ends as soon as one rule says so, or after max_new_tokens."""

    class Config(RecipeConfig):
        """Options of every stop rule."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def bind(self, tokenizer: Tokenizer) -> None:
        """Read the tokenizer before the first `done`. Raise UsageError for tokens that it lacks."""

    @property
    def most(self) -> int | None:
        """Token limit of the rule; None if it has none."""
        return None

    def done(self, row: WrittenRow) -> bool:
        """True if the text ends with its last token; called after each token."""
        raise NotImplementedError(f"{type(self).__name__} has no done")

    def cut_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that belong to a finished text; all by default."""
        return ids

    def cut_text(self, text: str) -> str:
        """Return the output for a finished text; all of it by default."""
        return text

    def certain(self, text: str) -> str:
        """Return the prefix of an unfinished text that will be output whatever follows, for streaming.

        A rule that cuts and does not override this holds everything back until the row is finished.
        """
        cuts = type(self).cut_ids is not StopRule.cut_ids or type(self).cut_text is not StopRule.cut_text
        return "" if cuts else text


@register("stop", "end_token")
class EndToken(StopRule):
    """Ends at the token that says so, which is left out (</s> of Sutskever et al. 2014, arXiv 1409.3215).

    No-op for a tokenizer without an end token.
    """

    class Config(StopRule.Config):
        """Options of end_token."""

        tokens: Tokens | None = Field(None, description="texts or ids of tokens; none: the tokenizer's end token")

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
    """Ends when one of the strings is written, wherever tokens begin and end; the text is cut before it."""

    class Config(StopRule.Config):
        """Options of strings."""

        strings: Texts = Field(description="the strings; the first to appear ends the text")
        keep: bool = Field(False, description="leave the string in the text, which then ends with it")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        return any(string in row.text for string in self.config.strings)

    def cut_text(self, text: str) -> str:
        found = [(text.find(string), len(string)) for string in self.config.strings if string in text]
        if not found:
            return text
        start, length = min(found)
        return text[: start + length] if self.config.keep else text[:start]

    def certain(self, text: str) -> str:
        """Hold back a suffix that may begin one of the strings."""
        if any(string in text for string in self.config.strings):
            return self.cut_text(text)
        longest = max(map(len, self.config.strings)) - 1
        ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        begun = next((end for end in ends if any(string.startswith(end) for string in self.config.strings)), "")
        return text[: len(text) - len(begun)]


@register("stop", "length")
class Length(StopRule):
    """Ends when `tokens` tokens are written; max_new_tokens holds besides."""

    class Config(StopRule.Config):
        """Options of length."""

        tokens: PositiveInt = Field(description="tokens that are written, an end token among them")

    config: Config

    @property
    def most(self) -> int:
        return self.config.tokens

    def done(self, row: WrittenRow) -> bool:
        return len(row.ids) >= self.config.tokens


@register("stop", "time")
class Time(StopRule):
    """Ends when a search has been writing for `seconds`; each batch of texts is a search of its own."""

    class Config(StopRule.Config):
        """Options of time."""

        seconds: PositiveFloat = Field(description="seconds after which no more tokens are written")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        return row.seconds >= self.config.seconds
