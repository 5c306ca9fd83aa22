"""The causal mask, from right to left."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.context import ALL, Inputs
from tfkit.core.registry import register


@register("mask", "reverse_causal")
class ReverseCausal(Mask):
    """key >= query: the present and the future, right to left (Peters et al. 2018, ELMo, arXiv 1802.05365)."""

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return key >= query

    def reach(self) -> tuple[int, int]:
        return 0, ALL
