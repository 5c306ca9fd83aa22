"""The plain recurrent network."""

from __future__ import annotations

from torch import nn

from tfkit.components.mixer.recurrent import Recurrent
from tfkit.core.registry import register


@register("mixer", "rnn")
class RNN(Recurrent):
    """h_t = tanh(W x_t + U h_{t-1} + b) (Elman 1990, Finding Structure in Time)."""

    cell = nn.RNN
