"""Sizes shared by the parts of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack and of one layer in it.

    `d_model` is the width of input and output; `memory_width` the width of the states that cross-attention attends to,
    or None; `layer` is the index in its stack; `depth` and `other_depth` are the numbers of layers of this and the
    other stack (0 if there is none); `causal` is set if the future is hidden; `num_heads` is the number of heads of the
    attentions that use a position, None if they differ.
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
