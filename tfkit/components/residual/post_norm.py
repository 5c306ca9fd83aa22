"""The original residual layout."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "post_norm")
class PostNorm(Residual):
    """x = Norm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, arXiv 1706.03762, section 3.1)."""

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = branch.norm(x + branch(x))
        return x
