"""GELU by a sigmoid."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.activation.base import Activation
from tfkit.core.registry import register


@register("activation", "quick_gelu")
class QuickGELU(Activation):
    """x * sigmoid(1.702 x), the sigmoid approximation of GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.702 * x).sigmoid()
