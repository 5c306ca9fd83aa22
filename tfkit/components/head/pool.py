"""Pooling: one vector for a whole text, from one of its tokens or the mean of all."""

from __future__ import annotations

from typing import Literal

import torch
from einops import rearrange, reduce
from torch import Tensor


def pool(hidden: Tensor, real: Tensor | None, how: Literal["first", "mean", "last"]) -> Tensor:
    """[batch time d_model] -> [batch d_model], of the real tokens (`real` [batch time], all when None) alone."""
    if real is None:
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    real = real.bool()
    if how == "mean":
        count = reduce(real, "batch time -> batch 1", "sum").clamp(min=1)
        # padding may hold anything, a NaN too, so it is masked out rather than multiplied by 0
        kept = hidden.masked_fill(~rearrange(real, "batch time -> batch time 1"), 0)
        return reduce(kept, "batch time d_model -> batch d_model", "sum") / count
    place = torch.arange(hidden.shape[1], device=hidden.device)
    if how == "first":
        wanted = torch.where(real, place, hidden.shape[1] - 1).amin(dim=1)
    else:
        wanted = torch.where(real, place, 0).amax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), wanted]
