"""my_part: a custom mask rule, which decides which tokens may attend to each other."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.components.mask import Mask
from tfkit.core.inputs import Inputs


@tfkit.register("mask", "my_part")
class MyPart(Mask):
    """A token sees all tokens less than `every` positions away, and every `every`-th token of the text."""

    # Options of the part, as written in a recipe: {type: my_part, every: 8}. Add your own here.
    class Config(Mask.Config):
        every: int = Field(8, ge=1, description="distance between the tokens visible to all")

    # By default, a rule is a limit: it hides the tokens for which it returns False. With `opens = True`, it reveals
    # tokens that limits hide. Set `hides_future = True` if the rule hides all later tokens, as `causal` does.
    config: Config

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        # Change this: True = visible. `query` [batch|1 query 1] and `key` [batch|1 1 key] are indices in the sequence.
        near = (query - key).abs() < self.config.every
        return near | (key % self.config.every == 0)
