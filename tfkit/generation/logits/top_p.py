"""The nucleus: the fewest tokens that hold most of the probability."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from tfkit.core.registry import register
from tfkit.generation.logits.base import NEVER, LogitsRule


@register("logits", "top_p")
class TopP(LogitsRule):
    """logit = -inf but for the fewest tokens whose probabilities reach p (Holtzman et al. 2020, 1904.09751)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        """Options of top_p."""

        p: float = Field(gt=0, le=1, description="probability that is left to draw from (the paper: 0.95)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        ascending, order = logits.sort(dim=-1)
        tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.config.p
        tail[:, -1] = False  # the most likely token, whatever the rounding
        return logits.masked_fill(tail.scatter(1, order, tail), NEVER)
