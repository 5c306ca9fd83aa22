"""The layout of GPT-2 and most models since."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "pre_norm")
class PreNorm(Residual):
    """x = x + Dropout(Sublayer(Norm(x))) (Xiong et al. 2020, arXiv 2002.04745)."""

    final_norm = True

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch(branch.norm(x))
        return x
