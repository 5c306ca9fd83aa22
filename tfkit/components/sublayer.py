"""Base class of attentions, feed-forward layers and mixers, which keep the shape [batch time d_model]."""

# Axes: batch, time, d_model.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Context
from tfkit.core.inputs import ASSUMED
from tfkit.core.slots import SublayerFacts


class Sublayer(SublayerFacts, nn.Module):
    """A branch of the residual stream."""

    # default for parts without declarations, which may read only `context.mask`
    capabilities = ASSUMED
    # True if losses or updates of the part count tokens; training then passes padding that causality would hide
    counts_tokens = False
    # True if a decode state holds only for padding before a text
    pads_first = False

    @classmethod
    def able(cls, config: component.Config | None = None) -> frozenset[str]:
        """Return the declared capabilities, with "rewind" for stateless parts."""
        able = super().able(config)
        return able if "cache" in able else able | {"rewind"}

    def __init__(self, config: component.Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Map [batch time d_model] to the same shape."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def apply_fused(self, x: Tensor) -> tuple[Tensor, ...]:
        """Apply the linear layers named in `fused` to x, in order; decoding computes them in one product."""
        return tuple([getattr(self, name)(x) for name in self.fused])

    def new_state(self) -> Any | None:
        """Return an empty decode state, or None if incremental decoding needs none.

        A state has `reorder(rows)` and `bytes()`. Optional methods: `rewind(length)` to remove tokens, with
        `earliest()` if not every length is possible; `reserve(length)`; and `keep_last(count)`, called before the
        first token if `context.mask` and `context.position` will only cover the last `count` tokens.
        """
        return None


def check_heads(num_heads: int, head_dim: int | None, d_model: int) -> Iterator[Problem]:
    """Yield a problem if `head_dim` is left to d_model, which the heads do not divide."""
    if head_dim is None and d_model % num_heads:
        text = f"{num_heads} heads do not divide d_model {d_model}; use a divisor, or set head_dim"
        yield Problem("num_heads", text)
