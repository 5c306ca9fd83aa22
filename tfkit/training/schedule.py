"""Schedules: the learning rate as a function of the step.

| type | choose it when |
|---|---|
| inverse_square_root | you follow the original paper, or do not know how long you will train |
| cosine | you know the number of steps: the usual choice for language models |
| warmup_stable_decay | you may train longer later: the rate is constant until the last steps |
| linear | you know the number of steps: used by BERT and for fine-tuning |
| constant | you run tests, or comparisons that do not concern the schedule |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tfkit.core.component import Doubt, Problem
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.options import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from tfkit.core.registry import register
from tfkit.core.slots import ScheduleFacts


class Schedule(ScheduleFacts):
    """Base class of schedules."""

    class Config(ScheduleFacts.Config, RecipeConfig):
        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            warmup = self.warmup_steps()
            if facts.steps is not None and warmup >= facts.steps:
                text = f"the warmup of {warmup:,} steps must be shorter than the {facts.steps:,} steps of training"
                yield Doubt("warmup", text)

    def __init__(self, config: Config) -> None:
        self.config = config

    def lr(self, step: int, total: int, d_model: int) -> float:
        """Return the learning rate of step `step` of `total`, counted from 1, for a model of width `d_model`."""
        raise NotImplementedError(f"{type(self).__name__} has no lr")


class Decay(Schedule):
    """Linear warmup to `lr` over `warmup` steps, then decay to `final` at the last step.

    Subclasses define the shape of the decay.
    """

    class Config(Schedule.Config):
        lr: PositiveFloat = Field(description="peak learning rate, reached at the end of the warmup")
        warmup: NonNegativeInt = Field(0, description="steps over which the learning rate rises from 0")
        final: NonNegativeFloat = Field(0.0, description="learning rate of the last step")

        def warmup_steps(self) -> int:
            return self.warmup

        @model_validator(mode="after")
        def _falls(self) -> Decay.Config:
            if self.final > self.lr:
                raise ValueError(
                    f"final ({self.final:g}) is higher than lr ({self.lr:g}); the learning rate can only fall"
                )
            return self

    config: Config

    def lr(self, step: int, total: int, d_model: int) -> float:
        """Return the learning rate of `step`. `total` may be less than the warmup."""
        config = self.config
        if step <= config.warmup:
            return config.lr * step / config.warmup
        return config.final + (config.lr - config.final) * self.remaining(self.progress(step, total))

    def progress(self, step: int, total: int) -> float:
        """Return the progress of the decay (0 to 1) at a step after the warmup."""
        return min(1.0, (step - self.config.warmup) / (total - self.config.warmup))

    def remaining(self, progress: float) -> float:
        """Return the remaining fraction of the decay (1 to 0) at `progress` (0 to 1)."""
        raise NotImplementedError(f"{type(self).__name__} has no remaining")


@register("schedule", "inverse_square_root")
class InverseSquareRoot(Schedule):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, arXiv 1706.03762)."""

    class Config(Schedule.Config):
        warmup: PositiveInt = Field(4000, description="steps over which the learning rate rises from 0")
        factor: PositiveFloat | None = Field(
            None, description="factor of the paper's formula; none: 1, unless peak is set"
        )
        peak: PositiveFloat | None = Field(
            None, description="peak learning rate, independent of d_model; alternative to factor"
        )

        def warmup_steps(self) -> int:
            return self.warmup

        @model_validator(mode="after")
        def _one_way(self) -> InverseSquareRoot.Config:
            if self.factor is not None and self.peak is not None:
                raise ValueError(
                    f"factor ({self.factor:g}) and peak ({self.peak:g}) both set the peak learning rate; use one"
                )
            return self

    config: Config

    def lr(self, step: int, total: int, d_model: int) -> float:
        """Return the learning rate of `step`. The maximum, `peak`, is reached at step `warmup`."""
        warmup = self.config.warmup
        peak = self.config.peak or (self.config.factor or 1.0) / math.sqrt(d_model * warmup)
        return peak * min(math.sqrt(warmup / step), step / warmup)


@register("schedule", "cosine")
class Cosine(Decay):
    """lr = final + (peak - final) * (1 + cos(pi * progress)) / 2 (Loshchilov and Hutter 2016, arXiv 1608.03983)."""

    def remaining(self, progress: float) -> float:
        return (1.0 + math.cos(math.pi * progress)) / 2.0


@register("schedule", "linear")
class LinearDecay(Decay):
    """lr = final + (peak - final) * (1 - progress), after a linear warmup (Devlin et al. 2018, arXiv 1810.04805)."""

    def remaining(self, progress: float) -> float:
        return 1.0 - progress


@register("schedule", "warmup_stable_decay")
class WarmupStableDecay(Decay):
    """lr = peak, then final + (peak - final) * remaining over the last steps (Hu et al. 2024, arXiv 2404.06395).

    To train longer, continue from a checkpoint before the decay (Hägele et al. 2024, arXiv 2405.18392).
    """

    class Config(Decay.Config):
        decay: Annotated[float, Field(gt=0, le=1)] = Field(
            0.2, description="fraction of the steps, at the end, over which the learning rate falls"
        )
        shape: Literal["linear", "sqrt"] = Field(
            "linear", description="shape of the decay: 1 - progress, or 1 - sqrt(progress)"
        )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            if facts.steps is not None and self.warmup > (1 - self.decay) * facts.steps:
                share = f"the decay (the last {self.decay:g} of {facts.steps:,} steps)"
                yield Problem("warmup", f"the warmup of {self.warmup:,} steps overlaps {share}; shorten one of them")

    config: Config

    def progress(self, step: int, total: int) -> float:
        """Return the progress of the decay, 0 until its first step."""
        falling = self.config.decay * total
        return min(1.0, max(0.0, (step - total + falling) / falling))

    def remaining(self, progress: float) -> float:
        return 1.0 - (progress if self.config.shape == "linear" else math.sqrt(progress))


@register("schedule", "constant")
class Constant(Schedule):
    """lr * min(1, step / warmup)."""

    class Config(Schedule.Config):
        lr: PositiveFloat = Field(description="learning rate")
        warmup: NonNegativeInt = Field(0, description="steps over which the learning rate rises from 0")

        def warmup_steps(self) -> int:
            return self.warmup

    config: Config

    def lr(self, step: int, total: int, d_model: int) -> float:
        config = self.config
        return config.lr if step >= config.warmup else config.lr * step / config.warmup
