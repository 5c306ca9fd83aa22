"""my_part: an objective of your own, what a model is trained for."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.models import Model
from tfkit.training.objective import Batch, Loss, Objective, TextRows
from tfkit.training.objective.base import finished, token_logits


@tfkit.register("objective", "my_part")
class MyPart(Objective):
    """Loss = -sum (1 - p)^gamma log p, p = p(token_t | token_<t): known tokens count less (Lin et al. 2017)."""

    # The options of the part, as a recipe writes them: {type: my_part, gamma: 1.5}. Add yours here.
    class Config(Objective.Config):
        gamma: float = Field(2.0, ge=0, description="0 is the plain loss of causal_lm")

    config: Config
    reads = "causal"  # or "bidirectional", "encoder_decoder"
    rows_type = TextRows  # what becomes of texts: each is a row whose tokens predict the next; or rows of your own
    capabilities = frozenset()  # "likelihood" where the loss is -log p, so that it has a perplexity

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        # Change this. `batch` has `input_ids` [rows time], and the `labels` [n] of the positions `predicted`.
        out = model(input_ids=batch["input_ids"], with_heads=False)
        log_p = token_logits(model, out.hidden, batch).log_softmax(-1).gather(1, batch["labels"][:, None])
        total = -((1 - log_p.exp()) ** self.config.gamma * log_p).sum()
        return finished(total, out.auxiliary_loss, len(log_p), training)
