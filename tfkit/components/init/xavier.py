"""The initial values of the original."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tfkit.components.init.base import Init
from tfkit.core.registry import register


@register("init", "xavier")
class Xavier(Init):
    """W ~ U(-a, a), a = sqrt(6 / (in + out)); tables ~ N(0, 1/width); biases 0 (Glorot and Bengio 2010)."""

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def linear(self, weight: Tensor) -> None:
        nn.init.xavier_uniform_(weight)

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        return float(shape[1] ** -0.5 if is_table else (2 / (shape[-2] + shape[-1])) ** 0.5)
