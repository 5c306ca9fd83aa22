"""Base of the feed-forward parts."""

from __future__ import annotations

from torch import nn

from tfkit.components.sublayer import Sublayer
from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Config
from tfkit.core.shape import Shape


class FeedForward(Sublayer):
    """Works on each position by itself: [batch time d_model] -> the same."""

    capabilities = TOKENWISE


def inner_norm(config: Config | None, d_ff: int) -> nn.Module:
    """The norm of the inner values that `config` describes, or none."""
    norm: nn.Module = nn.Identity() if config is None else config.build(Shape(d_ff))
    return norm
