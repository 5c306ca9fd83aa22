"""Linear attention: the exponential of a dot product is replaced by a dot product of features."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tfkit.components.attention.kernel import KernelAttention
from tfkit.core.registry import register


@register("attention", "linear")
class LinearAttention(KernelAttention):
    """Linear attention: phi(q_i) phi(k_j) for exp(q_i k_j) (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    class Config(KernelAttention.Config):
        feature: Literal["elu", "relu"] = Field(
            "elu",
            description="phi: elu, elu(x) + 1 (the paper's); relu, where a token whose features are all 0 sees none",
        )

    config: Config

    def log_features(self, x: Tensor) -> Tensor:
        if self.config.feature == "elu":
            return torch.where(x > 0, torch.log1p(x.clamp(min=0)), x)
        return torch.where(x > 0, x.clamp(min=torch.finfo(x.dtype).tiny).log(), float("-inf"))
