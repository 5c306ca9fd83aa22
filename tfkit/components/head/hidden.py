"""No head at all: the hidden states themselves."""

from __future__ import annotations

from torch import Tensor

from tfkit.components.head.base import Head
from tfkit.core.registry import register


@register("head", "hidden")
class Hidden(Head):
    """The hidden states themselves, [batch time d_model], for a model whose vectors are what is wanted."""

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        out: Tensor = self.dropout(hidden)
        return out
