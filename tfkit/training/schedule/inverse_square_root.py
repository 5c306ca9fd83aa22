"""The original's schedule."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from tfkit.core.options import PositiveFloat, PositiveInt
from tfkit.core.registry import register
from tfkit.training.schedule.base import Schedule


@register("schedule", "inverse_square_root")
class InverseSquareRoot(Schedule):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, arXiv 1706.03762)."""

    class Config(Schedule.Config):
        """Options of inverse_square_root."""

        warmup: PositiveInt = Field(4000, description="steps in which the learning rate rises from 0")
        factor: PositiveFloat | None = Field(
            None, description="multiplies the paper's formula; none: 1, unless peak is given"
        )
        peak: PositiveFloat | None = Field(
            None, description="the highest learning rate, whatever d_model; instead of factor"
        )

        def warmup_steps(self) -> int:
            return self.warmup

        @model_validator(mode="after")
        def _one_way(self) -> InverseSquareRoot.Config:
            if self.factor is not None and self.peak is not None:
                raise ValueError(
                    f"factor ({self.factor:g}) and peak ({self.peak:g}) both set the highest learning rate; give one"
                )
            return self

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.warmup = config.warmup
        self.factor = config.factor or 1.0
        self.peak = config.peak

    def lr(self, step: int, total: int, d_model: int) -> float:
        """The learning rate of `step`; `peak` is what the formula gives at step = warmup."""
        peak = self.peak or self.factor / math.sqrt(d_model * self.warmup)
        return peak * min(math.sqrt(self.warmup / step), step / self.warmup)
