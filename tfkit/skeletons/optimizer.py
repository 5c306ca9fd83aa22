"""my_part: a custom optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import nn

import tfkit
from tfkit.training.optimizer import Optimizer, parameter_groups


@tfkit.register("optimizer", "my_part")
class MyPart(Optimizer):
    """x -= lr * sign(mean(g)), with an exponential moving average of the gradients g."""

    # Options of the part, as written in a recipe: {type: my_part, momentum: 0.95}. Add your own here.
    class Config(Optimizer.Config):
        momentum: float = Field(0.9, ge=0, lt=1, description="decay rate of the moving average")

    config: Config

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        # Two groups: parameters with weight decay, and norms and biases without. Tied weights are listed once.
        return MyPartStep(parameter_groups(model, decay_norms_and_biases=True), lr, self.config.momentum)


class MyPartStep(torch.optim.Optimizer):
    """The update step. Everything it stores in `state` is saved in checkpoints, so that runs resume exactly."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["momentum"])

    def _update(self, parameter: nn.Parameter, lr: float, momentum: float) -> None:
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        # Change this: the update of one parameter.
        state["mean"].lerp_(parameter.grad, 1 - momentum)
        parameter.sub_(lr * state["mean"].sign())
