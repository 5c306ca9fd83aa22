"""The layout of Gemma 2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "sandwich")
class Sandwich(Residual):
    """x = x + scale * OutputNorm(Dropout(Sublayer(Norm(x)))) (Ding et al. 2021, CogView, arXiv 2105.13290)."""

    final_norm = True

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        return {f"{name}_{norm}": name for name in sublayers for norm in ("norm", "output_norm")}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = x + branch.scaled(branch.output_norm(branch.bare(branch.norm(x))))
        return x
