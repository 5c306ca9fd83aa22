"""Norms.

| type | choose it when |
|---|---|
| layer_norm | the original, BERT, GPT-2, BART and most models before 2022 |
| rms_norm | T5, Llama, Gemma and most models since: no mean, no bias, a little cheaper |
"""

from tfkit.components.norm.base import Norm
from tfkit.components.norm.layer_norm import LayerNorm
from tfkit.components.norm.rms_norm import RMSNorm

__all__ = ["LayerNorm", "Norm", "RMSNorm"]
