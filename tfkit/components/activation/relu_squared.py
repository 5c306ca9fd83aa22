"""Squared ReLU."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.activation.base import Activation
from tfkit.core.registry import register


@register("activation", "relu_squared")
class ReLUSquared(Activation):
    """max(0, x)² (So et al. 2021, Primer, arXiv 2109.08668)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()
