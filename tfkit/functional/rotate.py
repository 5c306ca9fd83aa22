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
        """Return cosine and sine in this dtype, cached for all layers."""
        if dtype not in self.made:
            self.made[dtype] = self.cosine.to(dtype), self.sine.to(dtype)
        return self.made[dtype]
