"""A window that slides with the query."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field
from torch import Tensor

from tfkit.components.mask.base import Mask
from tfkit.core.component import Problem
from tfkit.core.context import ALL, Inputs
from tfkit.core.options import NonNegativeInt, PositiveInt
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("mask", "window")
class Window(Mask):
    """query - before <= key <= query + after (Beltagy et al. 2020, Longformer, arXiv 2004.05150).

    causal, size 3      both ways, size 2
    1 . . . .           1 1 . . .
    1 1 . . .           1 1 1 . .
    1 1 1 . .           . 1 1 1 .
    . 1 1 1 .           . . 1 1 1
    . . 1 1 1           . . . 1 1
    """

    class Config(Mask.Config):
        size: PositiveInt | None = Field(
            None,
            description="keys seen: the last ones, itself included, if causal; else size // 2 each side and itself",
        )
        before: NonNegativeInt | None = Field(None, description="keys seen before itself; none: all of them")
        after: NonNegativeInt | None = Field(None, description="keys seen after itself; none: all of them")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.size is None and self.before is None and self.after is None:
                yield Problem("size", "a window needs a size, or before and after")
            if self.size is not None and (self.before is not None or self.after is not None):
                yield Problem("size", "says the window a second time; give size, or before and after")
            elif self.after and shape.causal:
                yield Problem("after", f"{self.after} keys after itself cannot be seen in a causal stack")

        def reach(self, causal: bool) -> tuple[int, int]:
            """Keys seen before and after itself."""
            if self.size is None:
                return (ALL if self.before is None else self.before), (ALL if self.after is None else self.after)
            return (self.size - 1, 0) if causal else (self.size // 2, self.size // 2)

    solid = True

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.before, self.after = config.reach(shape.causal)

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        distance = key - query
        return (distance >= -self.before) & (distance <= self.after)

    def reach(self) -> tuple[int, int]:
        return self.before, self.after
