"""Bases of the schedules: pure functions of the step, so that a resumed run needs nothing but its number."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from tfkit.core.component import Doubt, Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import NonNegativeFloat, NonNegativeInt, PositiveFloat
from tfkit.core.slots import ScheduleFacts


class Schedule(ScheduleFacts):
    """Base of the schedules."""

    class Config(ScheduleFacts.Config):
        """Options of every schedule."""

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            warmup = self.warmup_steps()
            if facts.steps is not None and warmup >= facts.steps:
                text = f"the learning rate rises for {warmup:,} steps, and there are {facts.steps:,}"
                yield Doubt("warmup", f"{text}: it never reaches what it rises to, or only at the end")

    def __init__(self, config: Config) -> None:
        self.config = config

    def lr(self, step: int, total: int, d_model: int) -> float:
        """The learning rate of `step` (from 1) of `total`, for a model of that width."""
        raise NotImplementedError(f"{type(self).__name__} has no lr")


class Decay(Schedule):
    """A straight rise to `lr` in `warmup` steps, then down to `final` at the last step; subclasses say how."""

    class Config(Schedule.Config):
        """Options of the schedules that end at a known step."""

        lr: PositiveFloat = Field(description="the highest learning rate, reached when the warmup ends")
        warmup: NonNegativeInt = Field(0, description="steps in which the learning rate rises from 0")
        final: NonNegativeFloat = Field(0.0, description="the learning rate of the last step")

        def warmup_steps(self) -> int:
            return self.warmup

        @model_validator(mode="after")
        def _falls(self) -> Decay.Config:
            if self.final > self.lr:
                raise ValueError(
                    f"final ({self.final:g}) is where the fall from lr ({self.lr:g}) ends, so it cannot be higher"
                )
            return self

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.peak = config.lr
        self.warmup = config.warmup
        self.final = config.final

    def lr(self, step: int, total: int, d_model: int) -> float:
        """The learning rate of `step`; a training no longer than the warmup ends while the rate still rises."""
        if step <= self.warmup:
            return self.peak * step / self.warmup
        progress = min(1.0, (step - self.warmup) / (total - self.warmup))
        return self.final + (self.peak - self.final) * self.remaining(progress)

    def remaining(self, progress: float) -> float:
        """How much of the way down is still to go, 1 to 0, when `progress` (0 to 1) of the steps are done."""
        raise NotImplementedError(f"{type(self).__name__} has no remaining")
