"""Heads side by side in one axis, and apart: plain views, since a step of decoding feels how long a pattern takes."""

from __future__ import annotations

from torch import Tensor


def split_heads(x: Tensor, dim: int) -> Tensor:
    """[batch time (head dim)] -> [batch head time dim]."""
    batch, time, _ = x.shape
    return x.view(batch, time, -1, dim).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[batch head time dim] -> [batch time (head dim)]."""
    return x.transpose(1, 2).flatten(2)
