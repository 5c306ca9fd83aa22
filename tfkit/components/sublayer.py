"""Base class of attention, feed-forward and mixers: a sublayer maps [batch time d_model] to the same shape."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.capabilities import ASSUMED
from tfkit.core.context import Context
from tfkit.core.shape import Shape
from tfkit.core.slots import SublayerFacts


class Sublayer(SublayerFacts, nn.Module):
    """A branch of the residual stream."""

    # what a part that says nothing of it is taken to promise: that it looks at `context.mask`, and at nothing else
    capabilities = ASSUMED

    @classmethod
    def able(cls, config: component.Config | None = None) -> frozenset[str]:
        """What it declares; where nothing is kept, nothing has to be taken back."""
        able = super().able(config)
        return able if "cache" in able else able | {"rewind"}

    def __init__(self, config: component.Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """[batch time d_model] -> [batch time d_model]."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The outputs for x of the linear layers named in `fused`, in their order."""
        return tuple([getattr(self, name)(x) for name in self.fused])

    def new_state(self) -> Any | None:
        """An empty decode state of this sublayer, or None when it needs none to decode one token at a time.

        It has `reorder(rows)` and `bytes()`. It may have `rewind(length)`, without which tokens cannot be taken back,
        with `earliest()` where that goes so far only; `reserve(length)`; and `keep_last(count)`, which tells it before
        anything is read that `context.mask` and `context.position` will tell of the last `count` tokens only.
        """
        return None
