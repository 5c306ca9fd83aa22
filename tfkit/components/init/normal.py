"""The initial values of BERT."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.init.base import Init
from tfkit.core import component
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register


@register("init", "normal")
class Normal(Init):
    """Weights and tables ~ N(0, std²), biases 0 (Devlin et al. 2018, arXiv 1810.04805)."""

    class Config(component.Config):
        std: PositiveFloat = Field(0.02, description="standard deviation")

    config: Config

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.config.std)

    def linear(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.config.std)

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        return self.config.std
