"""Positions.

| type | choose it when |
|---|---|
| sinusoidal | the original: fixed, no parameters, any length |
| learned | BERT, GPT-2, BART: a table, limited to its length |
| rotary | Llama and most models since 2021: relative, no parameters, can be scaled to longer texts |
| alibi | BLOOM: relative, no parameters, works for texts longer than those in training |
| t5_bias | T5: relative, a learned bias per head and range of distances |
| log_temperature | Ministral 3, with rotary: scores grow with the position, which keeps attention sharp in long texts |
"""

from tfkit.components.position.absolute import LearnedPosition, Sinusoidal
from tfkit.components.position.base import Position
from tfkit.components.position.bias import ALiBi, LogTemperature, T5Bias
from tfkit.components.position.rotary import Rotary

__all__ = ["ALiBi", "LearnedPosition", "LogTemperature", "Position", "Rotary", "Sinusoidal", "T5Bias"]
