"""The sizes that the parts of a model share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Shape:
    """The facts of a stack and of one layer in it.

    `d_model` is the width that comes in and goes out; `memory_width` the width of the states that a cross-attention
    attends to, None elsewhere; `layer` counts from 0 within its stack; `depth` and `other_depth` are the numbers of
    layers of this stack and of the one across (0 when there is none); `causal` says whether the future is hidden;
    `num_heads` the heads of the attentions that a position serves, None where they do not agree.
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
        """The width of what keys and values are made from."""
        return self.d_model if self.memory_width is None else self.memory_width
