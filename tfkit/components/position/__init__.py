"""Positions.

| type | choose it when |
|---|---|
| sinusoidal | the original: fixed, nothing to learn, any length |
| learned | BERT, GPT-2, BART: a table, as long as the longest text of training |
| rotary | Llama and most models since 2021: relative, nothing to learn, can be stretched to longer texts |
| alibi | BLOOM: relative, nothing to learn, trained short and used longer |
| t5_bias | T5: relative, a learned number for each range of distances and each head |
| log_temperature | beside rotary, Ministral 3: scores grow with the position, so that long texts stay in focus |
"""

from tfkit.components.position.absolute import LearnedPosition, Sinusoidal
from tfkit.components.position.base import Position
from tfkit.components.position.bias import ALiBi, LogTemperature, T5Bias
from tfkit.components.position.rotary import Rotary

__all__ = ["ALiBi", "LearnedPosition", "LogTemperature", "Position", "Rotary", "Sinusoidal", "T5Bias"]
