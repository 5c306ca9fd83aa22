"""Depthwise causal convolution and its decode state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Columns:
    """Decode state: the last inputs of a causal convolution [rows width columns], and an optional recurrent state."""

    def __init__(self) -> None:
        self.columns: Tensor | None = None
        self.carried: Tensor | None = None  # [rows ...]

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        for name in ("columns", "carried"):
            held = getattr(self, name)
            if held is not None:
                setattr(self, name, held.index_select(0, rows))

    def bytes(self) -> int:
        """Return the size of the state in bytes."""
        return sum(held.numel() * held.element_size() for held in (self.columns, self.carried) if held is not None)


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, state: Columns | None = None) -> Tensor:
    """Convolve each channel: out_t = sum_k weight[:, k] x_(t - size + 1 + k) + bias, with `weight` [width size].

    x and the result are [batch time width]. The first token is preceded by zeros or, with `state`, by the last inputs,
    and `state` is updated.
    """
    size = weight.shape[1]
    channels = x.transpose(1, 2)  # [batch width time]
    if state is None or state.columns is None:
        channels = F.pad(channels, (size - 1, 0))
    else:
        channels = torch.cat((state.columns, channels), dim=2)
    if state is not None:
        state.columns = channels[:, :, channels.shape[2] - size + 1 :]  # [batch width size-1]
    return F.conv1d(channels, weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)
