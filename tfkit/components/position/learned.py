"""Learned absolute positions, added to the token embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.position.base import Position
from tfkit.core import component
from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.options import NonNegativeInt, PositiveInt
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("position", "learned")
class Learned(Position):
    """x_p + table[p + offset], the table learned (Gehring et al. 2017, arXiv 1705.03122)."""

    class Config(component.Config):
        offset: NonNegativeInt = Field(
            0, description="rows before that of position 0, never looked up (BART, RoBERTa: 2)"
        )
        skip_padding: bool = Field(
            False, description="count real tokens only; padding takes the row before the first (RoBERTa)"
        )
        max_length: PositiveInt | None = Field(None, description="positions in the table; none: the stack's max_length")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.skip_padding and not self.offset:
                yield Problem("skip_padding", "padding takes the row before the first; give an offset of at least 1")
            if self.max_length is None and shape.max_length is None:
                yield Problem("max_length", "a learned position needs a max_length, here or in the stack")
            if self.max_length is not None and shape.max_length is not None and self.max_length < shape.max_length:
                yield Problem(
                    "max_length",
                    f"holds {self.max_length} positions, fewer than the stack's max_length {shape.max_length}",
                )

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        length = config.max_length or shape.max_length
        if length is None:
            raise UsageError("a learned position needs a max_length, its own or its shape's")
        self.length = length
        self.skips_padding = config.skip_padding
        self.table = nn.Embedding(length + config.offset, shape.d_model)

    def embed(self, positions: Tensor) -> Tensor:
        self._check(positions)
        out: Tensor = self.table(positions + self.config.offset)
        return out

    def _check(self, positions: Tensor) -> None:
        """Refuse positions beyond the table, where that can be seen without a break in a graph or a stalled GPU."""
        if torch.compiler.is_compiling() or positions.numel() == 0:
            return
        device, time = positions.device.type, positions.shape[-1]
        # a text longer than the table may still fit: the positions of packed texts begin anew
        if device != "cpu" and time <= self.length:
            return
        farthest = time - 1 if device == "meta" else int(positions.max())
        if farthest >= self.length:
            raise UsageError(
                f"position {farthest} (counted from 0) is beyond the {self.length} learned positions; "
                "shorten the text, or train with a larger max_length"
            )
