"""my_part: a custom head, which computes the outputs from the last layer's states."""

# Axes: batch, time, num_values, d_model.

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.head.base import Head


@tfkit.register("head", "my_part")
class MyPart(Head):
    """tanh(output(hidden)): a few numbers from -1 to 1 for each token."""

    # The options of the part, as a recipe writes them: {type: my_part, num_values: 3}. Add yours here.
    class Config(Head.Config):
        num_values: int = Field(1, ge=1, description="number of outputs per token")

    def __init__(self, config: Config, shape: tfkit.Shape, embedding: nn.Module | None = None) -> None:
        """`embedding` is the token embedding of the head's stack, for a head that shares its table."""
        super().__init__(config, shape, embedding)
        self.output = nn.Linear(shape.d_model, config.num_values)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        # Change this: [batch time d_model] -> logits. A head that looks at more than one token leaves out the padding:
        # `real` [batch time] says which tokens are real, None that all are.
        out: Tensor = self.output(self.dropout(hidden)).tanh()  # [batch time num_values]
        return out
