"""my_part: a custom schedule, the learning rate of each step."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.training.schedule import Schedule


@tfkit.register("schedule", "my_part")
class MyPart(Schedule):
    """lr, halved after every `every` steps."""

    # The options of the part, as a recipe writes them: {type: my_part, lr: 0.001}. Add yours here.
    class Config(Schedule.Config):
        lr: float = Field(0.001, gt=0, description="initial learning rate")
        every: int = Field(1000, ge=1, description="number of steps until it is halved")

    config: Config

    def lr(self, step: int, total: int, d_model: int) -> float:
        # Change this: `step` counts from 1 to `total`. The step is all it may depend on, so that a run can go on.
        return self.config.lr * 0.5 ** ((step - 1) // self.config.every)
