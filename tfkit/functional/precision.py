"""Promotion to a precision that half-precision inputs need internally: float32, or float64 for float64."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged in float64."""
    return x.to(wide_dtype(x.dtype))
