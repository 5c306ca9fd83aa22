"""Initial values.

| type | choose it when |
|---|---|
| xavier | the original, the default: each matrix by its own size |
| normal | BERT: one standard deviation for all |
| scaled_residual | GPT-2: the same, outputs smaller the deeper the stack; with pre_norm |
"""

from tfkit.components.init.base import Init
from tfkit.components.init.normal import Normal
from tfkit.components.init.scaled_residual import ScaledResidual
from tfkit.components.init.xavier import Xavier

__all__ = ["Init", "Normal", "ScaledResidual", "Xavier"]
