"""my_part: a custom objective: what a model is trained for."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.models.base import Model
from tfkit.training.objective.base import Loss, Objective, finished, token_loss
from tfkit.training.objective.rows import Batch, TextRows


@tfkit.register("objective", "my_part")
class MyPart(Objective):
    """Loss = -sum log p(token_t | token_<t); in training a share of each target is spread over all tokens."""

    # The options of the part, as a recipe writes them: {type: my_part, share: 0.2}. Add yours here.
    class Config(Objective.Config):
        share: float = Field(0.1, ge=0, lt=1, description="label smoothing, in training only")

    config: Config
    reads = "causal"  # or "bidirectional", "encoder_decoder"
    rows_type = TextRows  # what becomes of texts: each is a row whose tokens predict the next; or rows of your own
    # Say  capabilities = frozenset()  where the loss is not -log p: it has no perplexity then.

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        # Change this. `batch` has `input_ids` [rows time], and the `labels` [n] of the positions `predicted`.
        out = model(input_ids=batch["input_ids"], with_heads=False)
        total = token_loss(model, out.hidden, batch, self.config.share if training else 0.0)
        return finished(total, out.auxiliary_loss, len(batch["labels"]), training)
