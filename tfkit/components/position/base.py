"""Base class of the position parts: four hooks that do nothing by default."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Config
from tfkit.core.shape import Shape
from tfkit.core.slots import PositionFacts
from tfkit.functional.precision import wide_dtype


class Position(PositionFacts, nn.Module):
    """Encodes token positions. A part overrides some hooks; the model calls only those.

    Positions are [batch|1 time] integers. A position of the stack is shared by all layers; a position of a layer is its
    own.
    """

    capabilities = TOKENWISE
    model: Tensor

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self.register_buffer("model", torch.empty(0), persistent=False)  # empty, tracks the model's dtype

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the computation: float32, or float64 in a float64 model."""
        return wide_dtype(self.model.dtype)
