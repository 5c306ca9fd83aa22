"""A number of tokens."""

from __future__ import annotations

from pydantic import Field

from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.generation.stop.base import StopRule, WrittenRow


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
