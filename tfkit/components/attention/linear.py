"""Kernel attention with simple or random features, at a cost linear in the length."""

from __future__ import annotations

import math
from typing import Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor

from tfkit.components.attention.kernel import KernelAttention
from tfkit.core.options import Width
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("attention", "linear")
class LinearAttention(KernelAttention):
    """Linear attention: phi(q_i) phi(k_j) instead of exp(q_i k_j) (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    class Config(KernelAttention.Config):
        feature: Literal["elu", "relu"] = Field(
            "elu",
            description="feature map phi; elu: elu(x) + 1, as in the paper; relu: relu(x), which outputs 0 if all "
            "features are 0",
        )

    config: Config

    def log_features(self, x: Tensor) -> Tensor:
        if self.config.feature == "elu":
            return torch.where(x > 0, torch.log1p(x.clamp(min=0)), x)
        return torch.where(x > 0, x.clamp(min=torch.finfo(x.dtype).tiny).log(), float("-inf"))


@register("attention", "performer")
class Performer(KernelAttention):
    """FAVOR+: phi(x)_f = exp(w_f x' - |x'|² / 2) / sqrt(features), x' = x / dim^(1/4) (Choromanski 2020, 2009.14794).

    E phi(q) phi(k) = exp(q k / sqrt(dim)), so more features approximate softmax attention better. The random w are
    saved with the weights and change only in `redraw`.
    """

    class Config(KernelAttention.Config):
        features: Width | None = Field(
            None, description="number of random features; none: head_dim * ln(head_dim), as in the paper"
        )
        orthogonal: bool = Field(
            True, description="orthogonalize the features in groups of head_dim, for a smaller error"
        )

        def num_features(self, shape: Shape) -> int:
            dim = self.width(shape)
            return self.features or max(1, round(dim * math.log(max(dim, 1))))

    capabilities = KernelAttention.capabilities | {"temperature"}
    config: Config
    directions: Tensor

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.features = config.num_features(shape)
        self.register_buffer("directions", torch.empty(self.features, self.head_dim))
        self.redraw()

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new features from `generator` or the global RNG."""
        device = "cpu" if generator is None else generator.device
        if self.directions.device.type == "meta":
            return
        drawn = random_directions(self.features, self.head_dim, self.config.orthogonal, generator, device)
        self.directions.copy_(drawn)

    def log_features(self, x: Tensor) -> Tensor:
        x = x * self.head_dim**-0.25
        along = x @ self.directions.to(x.dtype).T
        return along - x.square().sum(dim=-1, keepdim=True) / 2 - math.log(self.features) / 2


def random_directions(
    features: int, dim: int, orthogonal: bool, generator: torch.Generator | None, device: torch.device | str
) -> Tensor:
    """Draw rows [features dim] from N(0, 1); if `orthogonal`, orthogonalize groups of `dim` rows, keeping the norms."""
    normal = torch.randn(features, dim, generator=generator, device=device)
    if not orthogonal:
        return normal
    groups = math.ceil(features / dim)
    squares = torch.randn(groups, dim, dim, generator=generator, device=device)
    turned, upper = torch.linalg.qr(squares)
    turned = turned * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # removes the bias of QR towards negative signs
    axes: Tensor = rearrange(turned, "group dim row -> (group row) dim")[:features]
    return axes * normal.square().sum(dim=-1, keepdim=True).sqrt()
