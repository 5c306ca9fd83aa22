"""The end token."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.stop.base import StopRule, WrittenRow
from tfkit.generation.tokens import Tokens, end_ids


@register("stop", "end_token")
class EndToken(StopRule):
    """Ends at the token that says so, which is left out (</s> of Sutskever et al. 2014, arXiv 1409.3215).

    A tokenizer without an end token never ends a text by it.
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
