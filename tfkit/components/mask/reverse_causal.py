"""The causal mask, from right to left."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.context import Inputs
from tfkit.core.registry import register


@register("mask", "reverse_causal")
class ReverseCausal(Mask):
    """key >= query: the present and the future, for a model that reads from right to left (ELMo, arXiv 1802.05365)."""

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return key >= query
