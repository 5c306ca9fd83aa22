"""my_part: a custom mask rule: which tokens attend to which."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.components.mask import Mask
from tfkit.core.inputs import Inputs


@tfkit.register("mask", "my_part")
class MyPart(Mask):
    """A token sees those less than `every` away, and each `every`-th token of the text."""

    # The options of the part, as a recipe writes them: {type: my_part, every: 8}. Add yours here.
    class Config(Mask.Config):
        every: int = Field(8, ge=1, description="distance between the tokens visible to all")

    # A limit hides what it does not show; with `opens = True` the rule shows what limits have hidden. A limit that
    # hides all that comes later says `hides_future = True`, and may then stand in for `causal`.
    config: Config

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        # Change this: True = may look. `query` [batch|1 query 1] and `key` [batch|1 1 key] are places in the sequence.
        near = (query - key).abs() < self.config.every
        return near | (key % self.config.every == 0)
