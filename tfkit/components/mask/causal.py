"""The causal mask."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.context import ALL, Inputs
from tfkit.core.registry import register


@register("mask", "causal")
class Causal(Mask):
    """key <= query: the past and the present (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3)."""

    hides_future = True
    triangle = True

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return key <= query

    def reach(self) -> tuple[int, int]:
        return ALL, 0
