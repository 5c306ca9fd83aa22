"""Rotary positions: queries and keys turned by an angle that grows with the position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tfkit.components.position.base import Position
from tfkit.core import component
from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.options import PositiveFloat
from tfkit.core.registry import register
from tfkit.functional.rotate import Rotation


class LinearScaling(BaseModel):
    """Positions divided by `factor`, for texts longer than those of training (Chen et al. 2023, arXiv 2306.15595)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    type: Literal["linear"] = Field(description="linear: all frequencies alike")
    factor: PositiveFloat = Field(description="how many times longer")


@register("position", "rotary")
class Rotary(Position):
    """Pair i of each query and key at p turned by p * theta^(-2i/width) (Su et al. 2021, arXiv 2104.09864).

    `width` is the part of head_dim that turns; scores then depend on positions by their differences alone.
    """

    class Config(component.Config):
        theta: PositiveFloat = Field(10000.0, description="base of the angular frequencies")
        fraction: Annotated[float, Field(gt=0, le=1)] = Field(
            1.0, description="share of head_dim that turns, its first channels (GPT-NeoX: 0.25)"
        )
        layout: Literal["halves", "interleaved"] = Field(
            "halves",
            description="halves pairs channels i and i + width/2 (Llama); interleaved 2i and 2i + 1 (the paper, GPT-J)",
        )
        scaling: LinearScaling | None = Field(None, description="stretch over longer texts; none: no stretch")

        def check_head_dim(self, head_dim: int) -> Iterator[Problem]:
            """Channels turn in pairs."""
            width = int(head_dim * self.fraction)
            if head_dim and (width % 2 or not width):
                option, share = ("", "") if self.fraction == 1 else ("fraction", f"{self.fraction} of ")
                yield Problem(
                    option, f"rotary turns channels in pairs; {share}head_dim {head_dim} is {width}, not an even number"
                )

    config: Config

    def rotation(self, positions: Tensor, dim: int) -> Rotation:
        angles = positions[:, None, :, None].double() * self._frequencies(dim, positions.device)
        return Rotation(angles.cos().float(), angles.sin().float(), self.config.layout)

    def _frequencies(self, dim: int, device: torch.device) -> Tensor:
        """Angular frequency of each pair, [pairs], in float64 so that far positions stay exact."""
        width = int(dim * self.config.fraction)
        if width % 2 or not width:
            raise UsageError(
                f"rotary turns channels in pairs, but {self.config.fraction} of head_dim {dim} is {width}; "
                "choose a fraction and a head_dim that give an even number"
            )
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
        stretch = 1.0 if self.config.scaling is None else self.config.scaling.factor
        return self.config.theta**-exponents / stretch
