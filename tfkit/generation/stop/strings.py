"""Texts that end a text."""

from __future__ import annotations

from pydantic import Field

from tfkit.core.registry import register
from tfkit.generation.stop.base import StopRule, WrittenRow
from tfkit.generation.tokens import Texts


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
        """All but an end that may be the beginning of one of the strings; where one is, the text is known."""
        if any(string in text for string in self.config.strings):
            return self.cut_text(text)
        longest = max(map(len, self.config.strings)) - 1
        ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        begun = next((end for end in ends if any(string.startswith(end) for string in self.config.strings)), "")
        return text[: len(text) - len(begun)]
