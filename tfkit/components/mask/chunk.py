"""Chunks of tokens that do not attend to one another."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.context import Inputs
from tfkit.core.options import PositiveInt
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("mask", "chunk")
class Chunk(Mask):
    """key // size = query // size, counted from a text's first token (Llama 4; Liu et al. 2018, arXiv 1801.10198).

    causal, size 2      both ways, size 2
    1 . . . .           1 1 . . .
    1 1 . . .           1 1 . . .
    . . 1 . .           . . 1 1 .
    . . 1 1 .           . . 1 1 .
    . . . . 1           . . . . 1
    """

    class Config(Mask.Config):
        size: PositiveInt = Field(description="tokens of a chunk")

    config: Config
    counts_texts = True

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.aligned = config.size

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return query // self.config.size == key // self.config.size

    def reach(self) -> tuple[int, int]:
        return self.config.size - 1, self.config.size - 1
