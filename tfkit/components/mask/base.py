"""Base of the mask rules: who may look at whom, by places in the sequence."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from tfkit.core.component import Component, Config
from tfkit.core.context import Inputs
from tfkit.core.shape import Shape


class Mask(Component):
    """A rule. Limits are ANDed; openings are ORed to them; padding and packed segments hold over all."""

    opens: ClassVar[bool] = False  # an opening rather than a limit
    hides_future: ClassVar[bool] = False  # a limit that leaves only the past and the present
    triangle: ClassVar[bool] = False  # exactly the causal triangle: kernels have a fast path for it
    solid: ClassVar[bool] = False  # a limit that shows everything within its `reach`
    marks: ClassVar[bool] = False  # opens exactly what `global_attention_mask` marks
    counts_texts: ClassVar[bool] = False  # asks for places counted from the first token of their text
    aligned: int | None = None  # of a limit: nothing is seen across the multiples of this

    def __init__(self, config: Config, shape: Shape) -> None:
        self.config = config
        self.shape = shape

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        """True = may look; `query` is [batch|1 query 1], `key` [batch|1 1 key]; gives [batch|1 query key]."""
        raise NotImplementedError(f"{type(self).__name__} has no rule")

    def reach(self) -> tuple[int, int] | None:
        """Of a limit: how many keys before and after itself a query sees at most, ALL where there is no end.

        None = nothing is known, and the rule is asked about the whole at once only.
        """
        return None
