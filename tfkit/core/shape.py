"""Sizes shared by the parts of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack and of one of its layers.

    `d_model` is the width of input and output, `memory_width` the width of the states that cross-attention attends to,
    or None. `layer` is the index of the layer, `depth` the number of layers in the stack, `other_depth` that of the
    other stack, or 0. `causal` is set if the future is hidden. `num_heads` is the number of heads in the attentions
    that use the position; None if they differ.
    """

    d_model: int
    vocab_size: int | None = None
    max_length: int | None = None
    side: Side = "decoder"
    causal: bool = False
    layer: int = 0
    depth: int = 1
    other_depth: int = 0
    memory_width: int | None = None
    num_heads: int | None = None

    @property
    def source_width(self) -> int:
        """Input width of the key and value projections."""
        return self.d_model if self.memory_width is None else self.memory_width
