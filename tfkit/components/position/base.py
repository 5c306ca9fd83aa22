"""Base class of the position parts, with four hooks that are no-ops by default."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfkit.core.component import Config, Shape
from tfkit.core.inputs import TOKENWISE
from tfkit.core.slots import PositionFacts
from tfkit.functional.view import wide_dtype


class Position(PositionFacts, nn.Module):
    """Encodes token positions. The model calls only the hooks that a part overrides.

    Positions are [batch|1 time] integers. All layers share the position part of the stack; one set for a layer is
    separate.
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
