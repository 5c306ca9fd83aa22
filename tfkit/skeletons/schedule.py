"""my_part: a custom schedule, the learning rate of each step."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.training.schedule import Schedule


@tfkit.register("schedule", "my_part")
class MyPart(Schedule):
    """lr, halved every `every` steps."""

    # Options of the part, as written in a recipe: {type: my_part, lr: 0.001}. Add your own here.
    class Config(Schedule.Config):
        lr: float = Field(0.001, gt=0, description="initial learning rate")
        every: int = Field(1000, ge=1, description="number of steps between halvings")

    config: Config

    def lr(self, step: int, total: int, d_model: int) -> float:
        # Change this: `step` counts from 1 to `total`. Depend on nothing but the arguments, so that runs can resume.
        return self.config.lr * 0.5 ** ((step - 1) // self.config.every)
