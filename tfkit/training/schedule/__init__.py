"""Schedules: the learning rate of each step, as a formula of the step.

| type | choose it when |
|---|---|
| inverse_square_root | you train as the original did, or do not know how long you will train |
| cosine | you know the number of steps: the usual choice for language models |
| linear | you know the number of steps: BERT's, and fine-tuning's |
| constant | you test, or another thing than the schedule is in question |
"""

from tfkit.training.schedule.base import Schedule
from tfkit.training.schedule.constant import Constant
from tfkit.training.schedule.cosine import Cosine
from tfkit.training.schedule.inverse_square_root import InverseSquareRoot
from tfkit.training.schedule.linear import LinearDecay

__all__ = ["Constant", "Cosine", "InverseSquareRoot", "LinearDecay", "Schedule"]
