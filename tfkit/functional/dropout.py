"""Dropout with 16 random bits per element: the same distribution in half the time on a CPU."""

# Axes: any. Each forward maps [...] to the same shape.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability `rate` (to 1/65,536) and scale the others to keep the mean."""
    if rate == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    # one 64-bit draw serves four elements
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    threshold = round(rate * LEVELS) - LEVELS // 2
    keep = words.view(torch.int16)[: x.numel()].view(x.shape) >= threshold
    return x * keep.to(x.dtype).mul_(1 / (1 - rate))


class Dropout(nn.Module):
    """Dropout in training mode, identity otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x

    def extra_repr(self) -> str:
        return f"{self.rate}"
