"""The gated recurrent unit."""

from __future__ import annotations

from torch import nn

from tfkit.components.mixer.recurrent import Recurrent
from tfkit.core.registry import register


@register("mixer", "gru")
class GRU(Recurrent):
    """h_t = (1 - z_t) n_t + z_t h_{t-1}, n_t = tanh(W x_t + r_t U h_{t-1}) (Cho et al. 2014, arXiv 1406.1078)."""

    cell = nn.GRU
