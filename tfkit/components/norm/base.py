"""Base of the norms: x -> x of the same shape, over the last axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfkit.core.component import Component, Config
from tfkit.core.shape import Shape


class Norm(Component, nn.Module):
    """Normalises [... width]; built with a Shape whose `d_model` is that width."""

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """[... width] -> [... width]."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or float64 where it is that: statistics in half precision would lose their last bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
