"""Base of the activations: one number in, one number out."""

from __future__ import annotations

from torch import Tensor, nn

from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Component, Config
from tfkit.core.shape import Shape


class Activation(Component, nn.Module):
    """Works on each element by itself: [... width] -> the same; built with a Shape whose `d_model` is that width."""

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """[... width] -> [... width]."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")
