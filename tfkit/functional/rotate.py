"""Rotary position encoding as a pure function: channels turned in pairs (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tfkit.functional.precision import wide_dtype

Layout = Literal["halves", "interleaved"]


@dataclass(frozen=True, eq=False)
class Rotation:
    """Turns the first channels of queries and keys; called on x [batch heads time dim], gives the same shape.

    `cosine` and `sine` are [batch|1 1 time pairs], float64; x turns in float32, or in float64 where it is that. In the
    layout `halves` channel i is paired with i + pairs, channel 2i with 2i + 1 in the layout `interleaved`; channels
    beyond the pairs stay as they are.
    """

    cosine: Tensor
    sine: Tensor
    layout: Layout
    made: dict[torch.dtype, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    def __call__(self, x: Tensor) -> Tensor:
        width = 2 * self.cosine.shape[-1]
        dtype = wide_dtype(x.dtype)
        cosine, sine = self._turn(dtype)
        turned, rest = x[..., :width].to(dtype), x[..., width:]
        if self.layout == "halves":
            first, second = turned.chunk(2, dim=-1)
        else:
            first, second = turned[..., 0::2], turned[..., 1::2]
        a = first * cosine - second * sine
        b = second * cosine + first * sine
        joined = torch.cat((a, b), dim=-1) if self.layout == "halves" else torch.stack((a, b), dim=-1).flatten(-2)
        joined = joined.to(x.dtype)
        return torch.cat((joined, rest), dim=-1) if rest.shape[-1] else joined

    def _turn(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine in that type, made once for all layers."""
        if dtype not in self.made:
            self.made[dtype] = self.cosine.to(dtype), self.sine.to(dtype)
        return self.made[dtype]
