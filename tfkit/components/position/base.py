"""Base of the position parts: four hooks that do nothing by default."""

from __future__ import annotations

from torch import nn

from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Config
from tfkit.core.shape import Shape
from tfkit.core.slots import PositionFacts


class Position(PositionFacts, nn.Module):
    """Encodes the positions of tokens. A part overrides one of the hooks; the model calls those that are overridden.

    Positions are [batch|1 time] integers. A position of the stack is one part for all layers; a position of a layer
    serves that layer alone.
    """

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
