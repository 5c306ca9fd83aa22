"""A prefix that every token may attend to."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.context import Inputs
from tfkit.core.errors import UsageError
from tfkit.core.registry import register


@register("mask", "prefix")
class Prefix(Mask):
    """key < prefix_length: the prefix is read both ways, the rest forwards (Liu et al. 2018, arXiv 1801.10198)."""

    opens = True
    needs = frozenset({"prefix_length"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        if inputs.prefix_length is None:
            raise UsageError("the mask 'prefix' needs prefix_length [batch], the number of tokens that all may see")
        return key < rearrange(inputs.prefix_length, "batch -> batch 1 1")
