"""Sinusoidal position encodings, added to the token embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.core.component import Problem
from tfkit.core.options import NonNegativeInt, PositiveFloat
from tfkit.core.registry import register
from tfkit.core.shape import Shape


@register("position", "sinusoidal")
class Sinusoidal(Position):
    """PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(same) (Vaswani et al. 2017, arXiv 1706.03762).

    With `offset`, p counts from there.
    """

    class Config(Position.Config):
        base: PositiveFloat = Field(10000.0, description="ratio between the longest and the shortest wavelength")
        layout: Literal["interleaved", "halves"] = Field(
            "interleaved",
            description="interleaved: sin, cos, sin, ... as in the paper; halves: all sines, then all cosines",
        )
        spacing: Literal["d_model", "endpoints"] = Field(
            "d_model",
            description="exponents: d_model: 2i/d_model, as in the paper; endpoints: from 0 to 1 inclusive (fairseq)",
        )
        offset: NonNegativeInt = Field(0, description="the number of the first position (fairseq: 2)")
        skip_padding: bool = Field(
            False, description="count real tokens only; nothing is added to padding (fairseq, M2M-100)"
        )

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.d_model % 2:
                yield Problem("", f"sinusoids come in pairs of sine and cosine; the width {shape.d_model} is odd")
            elif self.spacing == "endpoints" and shape.d_model < 4:
                yield Problem("spacing", "endpoints needs a width of at least 4")

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.skips_padding = config.skip_padding
        self.frequencies = self._frequencies(torch.device("cpu"))

    def embed(self, positions: Tensor) -> Tensor:
        place = (positions + self.config.offset)[..., None].double()
        # a GPU makes them sooner than it is given them
        angles = place * (self.frequencies if place.device.type == "cpu" else self._frequencies(place.device))
        pair = torch.stack((angles.sin(), angles.cos()), dim=-1)
        pair = pair.to(self.dtype)
        if self.config.skip_padding:
            pair = pair * (positions >= 0)[..., None, None]
        if self.config.layout == "interleaved":
            return rearrange(pair, "batch time pair two -> batch time (pair two)")
        return rearrange(pair, "batch time pair two -> batch time (two pair)")

    def _frequencies(self, device: torch.device) -> Tensor:
        """Angular frequency of each pair, [d_model / 2], in float64 so that far positions stay exact."""
        pairs = self.shape.d_model // 2
        steps = pairs if self.config.spacing == "d_model" else pairs - 1
        exponents = torch.arange(pairs, dtype=torch.float64, device=device) / steps
        return torch.exp(-math.log(self.config.base) * exponents)
