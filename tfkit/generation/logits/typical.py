"""Tokens whose information is close to the entropy."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, LogitsRule


@register("logits", "typical")
class Typical(LogitsRule):
    """logit = -inf but for the tokens nearest to the entropy that hold p or more (Meister et al. 2022, 2202.00666).

    A token's distance is |-log probability - entropy|; all that are as near as the farthest one needed stay.
    """

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of typical."""

        p: float = Field(gt=0, le=1, description="probability that is left to draw from (the paper: 0.2 to 0.95)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        logs = logits.log_softmax(dim=-1)
        entropy = -(logs * logs.exp()).nansum(dim=-1, keepdim=True)
        distance = (-logs - entropy).abs()
        ascending, order = distance.sort(dim=-1)
        held = logits.gather(1, order).softmax(dim=-1).cumsum(dim=-1)
        last = (held < self.config.p).sum(dim=-1, keepdim=True).clamp(max=logits.shape[1] - 1)
        return logits.masked_fill(distance > ascending.gather(1, last), NEVER)
