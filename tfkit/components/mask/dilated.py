"""A mask with gaps."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.context import ALL, Inputs
from tfkit.core.options import PositiveInt
from tfkit.core.registry import register


@register("mask", "dilated")
class Dilated(Mask):
    """(query - key) mod dilation = 0: beside a window, it reaches as far for less (Beltagy et al. 2020, Longformer).

    causal, dilation 2  both ways, window 4, dilation 2
    1 . . . .           1 . 1 . .
    . 1 . . .           . 1 . 1 .
    1 . 1 . .           1 . 1 . 1
    . 1 . 1 .           . 1 . 1 .
    1 . 1 . 1           . . 1 . 1
    """

    class Config(Mask.Config):
        dilation: PositiveInt = Field(description="every how many tokens one is seen; 1: all")

    config: Config

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return (query - key) % self.config.dilation == 0

    def reach(self) -> tuple[int, int]:
        return ALL, ALL
