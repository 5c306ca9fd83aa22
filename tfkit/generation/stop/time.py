"""A length of time."""

from __future__ import annotations

from pydantic import Field

from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.generation.stop.base import StopRule, WrittenRow


@register("stop", "time")
class Time(StopRule):
    """Ends when a search has been writing for `seconds`; each batch of texts is a search of its own."""

    class Config(StopRule.Config):
        """Options of time."""

        seconds: PositiveFloat = Field(description="seconds after which no more tokens are written")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        return row.seconds >= self.config.seconds
