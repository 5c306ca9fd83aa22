"""No residual connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tfkit.components.residual.base import Branch, Residual
from tfkit.core.registry import register


@register("residual", "plain")
class Plain(Residual):
    """x = Dropout(Sublayer(x)): no residual connection, no norms; a plain network (He et al. 2015, arXiv 1512.03385).

    It is what `residual: none` stands for.
    """

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        return {}

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        for branch in branches:
            x = branch(x)
        return x
