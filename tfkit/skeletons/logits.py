"""my_part: a custom logits rule, which changes the scores of the next token before the strategy chooses it."""

# Axes: rows (texts), time, vocab.

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.generation.logits.base import LogitsRule


@tfkit.register("logits", "my_part")
class MyPart(LogitsRule):
    """logit - penalty for the last generated token, to avoid immediate repetition."""

    # Options of the part, as written in a recipe: {type: my_part, penalty: 2}. Add your own here.
    class Config(LogitsRule.Config):
        penalty: float = Field(1.0, ge=0, description="subtracted from the logit")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        # Change this: [rows vocab] -> [rows vocab], never in place. `ids` [rows time] are the tokens so far, with -1 as
        # padding on the left; `new` [rows] is the number of generated tokens in each row.
        last, began = ids[:, -1:].clamp(min=0), new[:, None] > 0  # [rows 1] each
        price = torch.where(began, self.config.penalty, 0.0).to(logits.dtype)
        return logits.scatter_add(1, last, -price)
