"""The layout of GPT-NeoX."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "parallel_two_norms")
class ParallelTwoNorms(Residual):
    """x = x + sum of Dropout(Sublayer_i(Norm_i(x))), all of the same x (Black et al. 2022, arXiv 2204.06745)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        out = x
        for branch in branches:
            out = out + branch(branch.norm(x))
        return out
