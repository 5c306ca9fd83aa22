"""Splitting and joining of heads with plain views: the overhead of einops is noticeable in one-token steps."""

from __future__ import annotations

from torch import Tensor


def split_heads(x: Tensor, dim: int) -> Tensor:
    """Split heads: [batch time (head dim)] -> [batch head time dim]."""
    batch, time, _ = x.shape
    if time == 1:
        return x.reshape(batch, -1, 1, dim)  # a single token is in the right memory order
    return x.reshape(batch, time, -1, dim).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Join heads: [batch head time dim] -> [batch time (head dim)]."""
    if x.shape[2] == 1:
        return x.reshape(x.shape[0], 1, -1)
    return x.transpose(1, 2).flatten(2)
