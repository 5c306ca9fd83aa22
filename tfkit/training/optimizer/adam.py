"""Adam, with the constants of the original Transformer."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.training.optimizer.base import Betas, Optimizer, made


@register("optimizer", "adam")
class Adam(Optimizer):
    """x -= lr * mean(g) / (sqrt(mean(g²)) + eps) (Kingma and Ba 2014, arXiv 1412.6980; constants: 1706.03762)."""

    class Config(Optimizer.Config):
        """Options of adam."""

        betas: Betas = Field((0.9, 0.98), description="how slowly the means of gradients and of their squares forget")
        eps: PositiveFloat = Field(1e-9, description="added to the root, so that nothing is divided by zero")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options = {"betas": config.betas, "eps": config.eps}

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """Adam without weight decay."""
        return made(torch.optim.Adam, model, lr, self.options, decay_all=True)
