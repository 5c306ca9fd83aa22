"""Adam with weight decay beside the gradient."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from tfkit.core.options import NonNegativeFloat, PositiveFloat
from tfkit.core.registry import register
from tfkit.training.optimizer.base import Betas, Optimizer, made


@register("optimizer", "adamw")
class AdamW(Optimizer):
    """Adam, and x -= lr * weight_decay * x beside it (Loshchilov and Hutter 2017, arXiv 1711.05101)."""

    class Config(Optimizer.Config):
        """Options of adamw."""

        betas: Betas = Field((0.9, 0.999), description="how slowly the means of gradients and of their squares forget")
        eps: PositiveFloat = Field(1e-8, description="added to the root, so that nothing is divided by zero")
        weight_decay: NonNegativeFloat = Field(
            0.01, description="share of a weight that a step of learning rate 1 takes off"
        )
        decay_norms_and_biases: bool = Field(False, description="let norms, biases and other vectors decay too")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
        self.decay_all = config.decay_norms_and_biases

    def make(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """AdamW; norms and biases in a group without decay, unless decay_norms_and_biases is set."""
        return made(torch.optim.AdamW, model, lr, self.options, self.decay_all)
