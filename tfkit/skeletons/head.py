"""my_part: a custom head, which computes outputs from the states of the last layer."""

# Axes: batch, time, num_values, d_model.

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.head.base import Head


@tfkit.register("head", "my_part")
class MyPart(Head):
    """tanh(output(hidden)): a few numbers from -1 to 1 for each token."""

    # Options of the part, as written in a recipe: {type: my_part, num_values: 3}. Add your own here.
    class Config(Head.Config):
        num_values: int = Field(1, ge=1, description="number of outputs per token")

    def __init__(self, config: Config, shape: tfkit.Shape, embedding: nn.Module | None = None) -> None:
        """Build the head; `embedding` is the token embedding of its stack, to which it may be tied."""
        super().__init__(config, shape, embedding)
        self.output = nn.Linear(shape.d_model, config.num_values)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        # Change this: [batch time d_model] -> logits. A head that combines tokens must ignore padding: `real`
        # [batch time] is True for real tokens, or None if all are real.
        out: Tensor = self.output(self.dropout(hidden)).tanh()  # [batch time num_values]
        return out
