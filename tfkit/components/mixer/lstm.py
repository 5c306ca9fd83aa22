"""Long short-term memory."""

from __future__ import annotations

from torch import nn

from tfkit.components.mixer.recurrent import Recurrent
from tfkit.core.registry import register


@register("mixer", "lstm")
class LSTM(Recurrent):
    """c_t = f_t c_{t-1} + i_t tanh(W [x_t h_{t-1}]), h_t = o_t tanh(c_t) (Hochreiter and Schmidhuber 1997)."""

    cell = nn.LSTM
    carried = 2  # h and c
