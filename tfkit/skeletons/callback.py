"""my_part: a custom callback that observes training, or changes weights after each step."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.training.callback import Callback, Record, Training


@tfkit.register("callback", "my_part")
class MyPart(Callback):
    """Stop after `patience` steps without a lower loss."""

    # Options of the part, as written in a recipe: {type: my_part, patience: 50}. Add your own here.
    class Config(Callback.Config):
        patience: int = Field(50, ge=1, description="number of steps without a lower loss after which training stops")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.patience = config.patience
        self.best, self.at = float("inf"), 0

    def step(self, training: Training, record: Record) -> None:
        # Change this, and override other events as needed: start, validation, checkpoint, end. To change weights here,
        # in place, as in `weight.clamp_(-1, 1)` for weights of training.model.parameters(), declare in the class
        # `changes_weights = True`; numbers that a resumed run needs are returned by `state` and restored by `load`.
        if record.get("loss", self.best) < self.best:
            self.best, self.at = record["loss"], training.step
        if training.step - self.at >= self.patience:
            training.stop(f"no lower loss in {self.patience} steps")
