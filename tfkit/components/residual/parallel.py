"""The layout of GPT-J and PaLM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "parallel")
class Parallel(Residual):
    """n = Norm(x); x = x + sum of Dropout(Sublayer(n)) (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, section 2)."""

    final_norm = True

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        return {"norm": None}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        branches = list(branches)
        normed = branches[0].norms["norm"](x)
        for branch in branches:
            x = x + branch(normed)
        return x
