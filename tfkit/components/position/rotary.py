"""Rotary positions: queries and keys are rotated by angles proportional to the position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.components.position.scaling import AnyScaling, Scaling, plain_frequencies
from tfkit.core import component
from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.functional.rotate import Rotation

PROBED = 2**16  # maximum width at which scalings are checked


@register("position", "rotary")
class Rotary(Position):
    """Rotation of pair i in queries and keys at position p by p * theta^(-2i/width) (Su et al. 2021, arXiv 2104.09864).

    `width` is the rotated part of head_dim. Scores depend only on differences between positions.
    """

    class Config(Position.Config):
        theta: PositiveFloat = Field(10000.0, description="base of the angular frequencies")
        fraction: Annotated[float, Field(gt=0, le=1)] = Field(
            1.0, description="share of head_dim to rotate, from its first channel (GPT-NeoX: 0.25)"
        )
        layout: Literal["halves", "interleaved"] = Field(
            "halves",
            description="halves: pair channels i and i + width/2 (Llama); interleaved: 2i, 2i + 1 (the paper, GPT-J)",
        )
        clockwise: bool = Field(False, description="rotate by -p (nanochat)")
        scaling: AnyScaling | None = Field(
            None, description="scaling of the frequencies for longer texts; none: no scaling"
        )

        def check_head_dim(self, head_dim: int) -> Iterator[Problem]:
            """Check that the rotated channels form pairs."""
            width = int(head_dim * self.fraction)
            if head_dim and (width % 2 or not width):
                whole = self.fraction == 1
                name = "head_dim" if whole else f"{self.fraction} of head_dim {head_dim}"
                yield Problem(
                    "" if whole else "fraction",
                    f"rotary rotates pairs of channels, so {name} must be even and at least 2, got {width}",
                )
            elif self.scaling is not None and 0 < width <= PROBED:
                yield from self._check_scaling(self.scaling, width)

        def temperature(self) -> float:
            """Return the scaling's factor on all scores."""
            return 1.0 if self.scaling is None else self.scaling.temperature

        def _check_scaling(self, scaling: Scaling, width: int) -> Iterator[Problem]:
            """Check that scaling yields a finite frequency for each pair."""
            lengths = torch.tensor([1, 2**31])
            try:
                found = scaling.frequencies(self.theta, width, lengths)
            except (ArithmeticError, ValueError, RuntimeError):
                found = torch.tensor([math.nan])
            if not scaling.fits(width) or not bool(found.isfinite().all()):
                yield Problem(
                    "scaling",
                    f"yields frequencies that are not finite, or not one for each of {width // 2} pairs of channels",
                )

    config: Config

    @classmethod
    def hooks(cls) -> frozenset[str]:
        return frozenset({"rotation"})

    @classmethod
    def asks(cls, config: component.Config) -> frozenset[str]:
        scaled = isinstance(config, cls.Config) and config.temperature() != 1.0
        return cls.hooks() | ({"temperature"} if scaled else set())

    @property
    def moves(self) -> bool:
        return self.config.scaling is not None and self.config.scaling.moves

    def regime(self, length: Tensor) -> Tensor:
        return torch.zeros_like(length) if self.config.scaling is None else self.config.scaling.regime(length)

    def rotation(self, positions: Tensor, dim: int) -> Rotation:
        return self.rotation_within(
            positions, positions.amax(dim=-1, keepdim=True) + 1 if self.moves else positions, dim
        )

    def rotation_within(self, positions: Tensor, lengths: Tensor, dim: int) -> Rotation:
        frequencies = self._frequencies(dim, lengths)
        angles = rearrange(positions, "batch time -> batch 1 time 1").double() * frequencies  # [batch 1 time pairs]
        amplitude = 1.0 if self.config.scaling is None else self.config.scaling.amplitude
        cosine, sine = angles.cos() * amplitude, angles.sin() * amplitude
        return Rotation(cosine, -sine if self.config.clockwise else sine, self.config.layout)

    def temperature(self, positions: Tensor) -> Tensor | None:
        factor = self.config.temperature()
        return None if factor == 1.0 else torch.full_like(positions, factor, dtype=self.dtype)

    def _frequencies(self, dim: int, lengths: Tensor) -> Tensor:
        """Return angular frequencies, [pairs] or [batch|1 1 time|1 pairs], in float64 for accuracy at far positions."""
        width = int(dim * self.config.fraction)
        if width % 2 or not width:
            raise UsageError(
                f"rotary rotates pairs of channels, but {self.config.fraction} of head_dim {dim} is {width}; "
                "choose fraction and head_dim so that the product is even"
            )
        if self.config.scaling is None:
            return plain_frequencies(self.config.theta, width, lengths.device)
        found = self.config.scaling.frequencies(self.config.theta, width, lengths)
        return found if found.dim() == 1 else rearrange(found, "batch time pair -> batch 1 time pair")
