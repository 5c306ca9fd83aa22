"""Position parts that add vectors to the embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.position.base import Position
from tfkit.core import component
from tfkit.core.component import Problem, Shape
from tfkit.core.errors import UsageError
from tfkit.core.options import NonNegativeInt, PositiveFloat, Width
from tfkit.core.registry import register


@register("position", "sinusoidal")
class Sinusoidal(Position):
    """PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) = cos(same) (Vaswani et al. 2017, arXiv 1706.03762).

    p starts at `offset`.
    """

    class Config(Position.Config):
        base: PositiveFloat = Field(10000.0, description="ratio of the longest to the shortest wavelength")
        layout: Literal["interleaved", "halves"] = Field(
            "interleaved",
            description="interleaved: sine, cosine, sine, ... as in the paper; halves: all sines, then all cosines",
        )
        spacing: Literal["d_model", "endpoints"] = Field(
            "d_model",
            description="exponents of base; d_model: 2i/d_model, as in the paper; endpoints: from 0 to 1 inclusive "
            "(fairseq)",
        )
        offset: NonNegativeInt = Field(0, description="index of the first position (fairseq: 2)")
        skip_padding: bool = Field(
            False, description="number only real tokens, and add nothing to padding (fairseq, M2M-100)"
        )

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.d_model % 2:
                yield Problem(
                    "", f"sinusoids are pairs of sine and cosine, so the width must be even, got {shape.d_model}"
                )
            elif self.spacing == "endpoints" and shape.d_model < 4:
                yield Problem("spacing", f"endpoints needs a width of at least 4, got {shape.d_model}")

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.skips_padding = config.skip_padding
        self.frequencies = self._frequencies(torch.device("cpu"))

    def embed(self, positions: Tensor) -> Tensor:
        place = (positions + self.config.offset if self.config.offset else positions).double()[..., None]
        # computing on a GPU is faster than copying
        angles = place * (self.frequencies if place.device.type == "cpu" else self._frequencies(place.device))
        pair = angles.sin(), angles.cos()  # [batch time d_model/2] each
        if self.config.layout == "interleaved":
            vectors = rearrange(torch.stack(pair, dim=-1), "batch time pair two -> batch time (pair two)")
        else:
            vectors = torch.cat(pair, dim=-1)  # [batch time d_model]
        vectors = vectors.to(self.dtype)
        return vectors * (positions >= 0)[..., None] if self.config.skip_padding else vectors

    def _frequencies(self, device: torch.device) -> Tensor:
        """Return the angular frequency of each pair, [d_model / 2], in float64 for accuracy at far positions."""
        pairs = self.shape.d_model // 2
        steps = pairs if self.config.spacing == "d_model" else pairs - 1
        exponents = torch.arange(pairs, dtype=torch.float64, device=device) / steps
        return torch.exp(-math.log(self.config.base) * exponents)


@register("position", "learned")
class LearnedPosition(Position):
    """x_p + table[p + offset], with a learned table (Gehring et al. 2017, arXiv 1705.03122)."""

    class Config(Position.Config):
        offset: NonNegativeInt = Field(0, description="unused rows before the row of position 0 (BART, RoBERTa: 2)")
        skip_padding: bool = Field(
            False, description="number only real tokens; padding uses the row before that of position 0 (RoBERTa)"
        )
        max_length: Width | None = Field(None, description="number of positions; none: the stack's max_length")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.skip_padding and not self.offset:
                yield Problem("skip_padding", "padding uses the row before position 0; set offset to 1 or more")
            if self.max_length is None and shape.max_length is None:
                yield Problem("max_length", "learned positions need max_length, here or in the stack")
            if self.max_length is not None and shape.max_length is not None and self.max_length < shape.max_length:
                yield Problem(
                    "max_length",
                    f"gives the table {self.max_length} positions, fewer than the stack's max_length "
                    f"{shape.max_length}",
                )

    config: Config
    length: int

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        length = config.max_length or shape.max_length
        if length is None:
            raise UsageError("learned positions need max_length, in the options or in the shape")
        self.length = length
        self.skips_padding = config.skip_padding
        self.table = nn.Embedding(length + config.offset, shape.d_model)

    @classmethod
    def holds(cls, config: component.Config) -> int | None:
        return config.max_length if isinstance(config, cls.Config) else None

    def embed(self, positions: Tensor) -> Tensor:
        self._check(positions)
        rows = positions + self.config.offset if self.config.offset else positions
        try:
            out: Tensor = self.table(rows)
        except IndexError:
            raise self._beyond(int(positions.max())) from None
        return out

    def _check(self, positions: Tensor) -> None:
        """Raise UsageError for positions beyond the table on devices whose look-ups do not raise.

        The GPU is synchronized only if necessary.
        """
        if torch.compiler.is_compiling() or positions.device.type == "cpu":
            return
        # a row longer than the table may still be valid, as positions restart for each packed text
        time = positions.shape[-1]
        if time > self.length:
            farthest = time - 1 if positions.device.type == "meta" else int(positions.max())
            if farthest >= self.length:
                raise self._beyond(farthest)

    def _beyond(self, position: int) -> UsageError:
        return UsageError(
            f"position {position} (counted from 0) is beyond the {self.length} learned positions; "
            "shorten the text, or train with a larger max_length"
        )
