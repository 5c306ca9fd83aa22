"""Rotary position encoding as a pure function: channels rotated in pairs (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tfkit.functional.view import wide_dtype

Layout = Literal["halves", "interleaved"]


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotation of the first 2 * pairs channels of queries or keys [batch heads time dim]. Other channels are unchanged.

    `cosine` and `sine` are [batch|1 1 time pairs] in float64. Products are computed in at least float32. The layout
    `halves` pairs channels i and i + pairs, and `interleaved` pairs channels 2i and 2i + 1.
    """

    cosine: Tensor
    sine: Tensor
    layout: Layout
    made: dict[torch.dtype, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    def __call__(self, x: Tensor) -> Tensor:
        return rotate(x, *self._turn(wide_dtype(x.dtype)), self.layout)

    def _turn(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine in this dtype, cached for all layers."""
        if dtype not in self.made:
            self.made[dtype] = self.cosine.to(dtype), self.sine.to(dtype)
        return self.made[dtype]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, layout: Layout) -> Tensor:
    """Rotate the first 2 * pairs channels of x [batch heads time dim] by angles [batch|1 1 time pairs]."""
    width = 2 * cosine.shape[-1]
    turned, rest = x[..., :width].to(cosine.dtype), x[..., width:]
    if layout == "halves":
        first, second = turned.chunk(2, dim=-1)
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    a = first * cosine - second * sine
    b = second * cosine + first * sine
    joined = torch.cat((a, b), dim=-1) if layout == "halves" else torch.stack((a, b), dim=-1).flatten(-2)
    joined = joined.to(x.dtype)
    return torch.cat((joined, rest), dim=-1) if rest.shape[-1] else joined
