"""The same at every step."""

from __future__ import annotations

from pydantic import Field

from tfkit.core.options import NonNegativeInt, PositiveFloat
from tfkit.core.registry import register
from tfkit.training.schedule.base import Schedule


@register("schedule", "constant")
class Constant(Schedule):
    """lr * min(1, step / warmup)."""

    class Config(Schedule.Config):
        """Options of constant."""

        lr: PositiveFloat = Field(description="the learning rate")
        warmup: NonNegativeInt = Field(0, description="steps in which the learning rate rises from 0")

        def warmup_steps(self) -> int:
            return self.warmup

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.peak = config.lr
        self.warmup = config.warmup

    def lr(self, step: int, total: int, d_model: int) -> float:
        """The learning rate of `step`."""
        return self.peak if step >= self.warmup else self.peak * step / self.warmup
