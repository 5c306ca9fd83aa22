"""Base class of the embeddings: ids to vectors."""

# Axes: batch, time, width (channels of the table), d_model.

from __future__ import annotations

from torch import Tensor, nn

from tfkit.core.component import Shape
from tfkit.core.context import Placement
from tfkit.core.facts import RecipeConfig
from tfkit.core.inputs import TOKENWISE, Inputs
from tfkit.core.slots import EmbeddingFacts


class Embedding(EmbeddingFacts, nn.Module):
    """Maps token ids or vectors to the input of the first layer."""

    class Config(EmbeddingFacts.Config, RecipeConfig):
        """Options of all embeddings."""

    capabilities = TOKENWISE
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self.width = config.width(shape)

    def cut(self, vectors: Tensor) -> Tensor:
        """Convert the vectors of a call to [batch time width]; identity by default."""
        return vectors

    def forward(self, inputs: Inputs, placement: Placement, vectors: Tensor | None = None) -> Tensor:
        """Map `inputs.input_ids` [batch time], or `vectors` [batch time width], to [batch time d_model].

        An embedding that declares `writes` is called with `context=` too.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")
