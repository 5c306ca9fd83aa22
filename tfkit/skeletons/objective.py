"""my_part: a custom objective, the loss that training minimizes."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.models.base import Model
from tfkit.training.objective.base import Loss, Objective, finished, token_loss
from tfkit.training.objective.rows import Batch, TextRows


@tfkit.register("objective", "my_part")
class MyPart(Objective):
    """Loss = -sum log p(token_t | token_<t), with label smoothing in training."""

    # Options of the part, as written in a recipe: {type: my_part, share: 0.2}. Add your own here.
    class Config(Objective.Config):
        share: float = Field(
            0.1,
            ge=0,
            lt=1,
            description="share of a target's probability to spread over all tokens, in training only",
        )

    config: Config
    reads = "causal"  # or "bidirectional", "encoder_decoder"
    rows_type = TextRows  # each text becomes a row whose tokens predict the next one; or use your own rows
    # Set  capabilities = frozenset()  if the loss is not -log p, since perplexity is then undefined.

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        # Change this. `batch` contains `input_ids` [rows time] and `labels` [n]. Labels belong to the positions
        # `predicted` [n] of the flattened ids; without padding, `predicted` is missing and each position has a label.
        out = model(input_ids=batch["input_ids"], with_heads=False)
        total = token_loss(model, out.hidden, batch, self.config.share if training else 0.0)
        return finished(total, out.auxiliary_loss, len(batch["labels"]), training)
