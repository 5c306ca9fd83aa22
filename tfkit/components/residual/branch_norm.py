"""The layout of OLMo 2."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "branch_norm")
class BranchNorm(Residual):
    """x = x + Norm(Dropout(Sublayer(x))) (Liu et al. 2021, Swin v2, arXiv 2111.09883; OLMo 2, arXiv 2501.00656)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch.norm(branch(x))
        return x
