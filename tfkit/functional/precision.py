"""Promotion of half-precision tensors to float32 for internal computations."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """Convert `x` to float32, unless it is float64."""
    return x.to(wide_dtype(x.dtype))
