"""my_part: a custom embedding, from token ids to vectors."""

# Axes: batch, time, width (channels of the table), d_model.

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

import tfkit
from tfkit.components.embedding.base import Embedding
from tfkit.core.component import Problem
from tfkit.core.context import Placement
from tfkit.core.inputs import Inputs


@tfkit.register("embedding", "my_part")
class MyPart(Embedding):
    """length * tokens[id] / |tokens[id]| + position: all token vectors have equal length."""

    # Options of the part, as written in a recipe: {type: my_part, length: 4}. Add your own here.
    class Config(Embedding.Config):
        length: float = Field(1.0, gt=0, description="length of a token's vector")

        def check(self, shape: tfkit.Shape) -> Iterator[Problem]:
            # Problems are reported when the recipe is validated, before any tensor exists.
            if shape.vocab_size is None:
                yield Problem("", "needs a vocab_size in the model: a number or `tokenizer`")

    config: Config

    def __init__(self, config: Config, shape: tfkit.Shape) -> None:
        super().__init__(config, shape)
        # A head can be tied to the table only if the table is called `tokens`.
        self.tokens = nn.Embedding(shape.vocab_size or 1, self.width)

    def forward(self, inputs: Inputs, placement: Placement, vectors: Tensor | None = None) -> Tensor:
        if (inputs.input_ids is None) == (vectors is None):
            raise tfkit.UsageError("pass either input_ids or vectors")
        if inputs.token_type_ids is not None:
            raise tfkit.UsageError("my_part does not support segments; omit token_type_ids")
        rows = self.tokens(inputs.input_ids) if vectors is None else vectors
        # Change this: [batch time width] -> [batch time d_model].
        x: Tensor = self.config.length * F.normalize(rows, dim=-1)
        position = placement.embed()  # the sum that position parts add, or None
        return x if position is None else x + position.to(x.dtype)
