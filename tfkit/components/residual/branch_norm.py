"""The layout of OLMo 2."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "branch_norm")
class BranchNorm(Residual):
    """x = x + scale * Norm(Dropout(Sublayer(x))) (Liu et al. 2021, arXiv 2111.09883; OLMo 2, 2501.00656)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch.scaled(branch.norm(branch.bare(x)))
        return x
