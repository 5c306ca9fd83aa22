"""my_part: a custom logits rule, which changes the scores of the next token before it is chosen."""

# Axes: rows (texts), time, vocab.

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.generation.logits.base import LogitsRule


@tfkit.register("logits", "my_part")
class MyPart(LogitsRule):
    """logit - penalty for the token that was just written, so that none is written twice in a row."""

    # The options of the part, as a recipe writes them: {type: my_part, penalty: 2}. Add yours here.
    class Config(LogitsRule.Config):
        penalty: float = Field(1.0, ge=0, description="subtracted from the logit")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        # Change this: [rows vocab] -> [rows vocab], and never in place. `ids` [rows time] is what stands there so far,
        # -1 before a shorter row; `new` [rows] says how many of them were written.
        last, began = ids[:, -1:].clamp(min=0), new[:, None] > 0  # [rows 1] each
        price = torch.where(began, self.config.penalty, 0.0).to(logits.dtype)
        return logits.scatter_add(1, last, -price)
