"""Base of the embeddings: ids to vectors."""

from __future__ import annotations

from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Component
from tfkit.core.context import Inputs, Placement
from tfkit.core.shape import Shape


class Embedding(Component, nn.Module):
    """Turns token ids, or vectors in their stead, into what the first layer reads."""

    class Config(component.Config):
        def width(self, shape: Shape) -> int:
            """The width in which positions are added."""
            return shape.d_model

        def table_width(self, shape: Shape) -> int:
            """The width of the token table."""
            return self.width(shape)

        def reads(self, shape: Shape) -> int | None:
            """The width of the vectors that are read in the place of ids; None = ids, and there is a token table."""
            return None

    capabilities = TOKENWISE
    tokens: nn.Embedding  # [vocab_size table_width], what a head may be tied to

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self.width = config.width(shape)

    def forward(self, inputs: Inputs, placement: Placement, vectors: Tensor | None = None) -> Tensor:
        """`inputs.input_ids` [batch time], or `vectors` [batch time width] instead -> [batch time d_model]."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")
