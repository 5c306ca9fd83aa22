"""Base of the position parts: four hooks that do nothing by default."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Config
from tfkit.core.shape import Shape
from tfkit.core.slots import PositionFacts
from tfkit.functional.precision import wide_dtype


class Position(PositionFacts, nn.Module):
    """Encodes the positions of tokens. A part overrides one of the hooks; the model calls those that are overridden.

    Positions are [batch|1 time] integers. A position of the stack is one part for all layers; a position of a layer
    serves that layer alone.
    """

    capabilities = TOKENWISE
    model: Tensor

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self.register_buffer("model", torch.empty(0), persistent=False)  # follows the model's dtype, and is empty

    @property
    def dtype(self) -> torch.dtype:
        """The dtype to compute in: float32, or float64 in a model of float64."""
        return wide_dtype(self.model.dtype)
