"""Declarations of residual layouts, and of the streams that they may have in place of one residual stream.

The stack calls `enter` before its first layer and `leave` after its last, on one more instance of the last layer's
layout, whose `shape.sublayers` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tfkit.core import component
from tfkit.core.component import PositiveFloat, Shape
from tfkit.core.store import StoreFacts

if TYPE_CHECKING:  # recipes are read without torch
    from torch import Tensor


class ResidualFacts(StoreFacts):
    """Declarations of residual layouts."""

    class Config(StoreFacts.Config):
        part: ClassVar[type[ResidualFacts]]

        branch_scale: PositiveFloat = Field(1.0, description="factor of each sublayer's output (Granite)")

        def num_streams(self) -> int | None:
            """Return the number of streams that `enter` returns: the option `streams`, or as the class declares."""
            return dict(self).get("streams", self.part.streams)

        def added(self, sublayers: Sequence[str]) -> int:
            """Return the number of streams that a layer with these sublayers adds."""
            return 0

    # number of streams between layers; None: x itself, [batch time d_model], without an axis of streams
    streams: ClassVar[int | None] = None
    # True if a stack ending in a layer with this layout needs a final norm
    final_norm: ClassVar[bool] = False

    def enter(self, x: Tensor) -> Tensor:
        """Map [batch time d_model] to the streams that the first layer reads, [batch time streams d_model]."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    def leave(self, x: Tensor) -> Tensor:
        """Map the streams after the last layer to [batch time d_model]."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        """Return the layer's norms, each with the sublayer whose `<sublayer>_norm` option may replace it, or None."""
        return {f"{name}_norm": name for name in sublayers}

    @classmethod
    def init_gain(cls, config: component.Config, shape: Shape) -> float:
        """Return the factor for the initial weights of values, outputs and feed-forward, as in the layout's paper."""
        return 1.0
