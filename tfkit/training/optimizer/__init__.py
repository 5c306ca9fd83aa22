"""Optimizers. The learning rate belongs to the schedule.

| type | choose it when |
|---|---|
| adam | you train as the original did, or with the inverse square root schedule |
| adamw | you train as most have since 2018: weight decay beside the gradient |
| torch | you want another of PyTorch's own, by its name: SGD, RAdam, NAdam, Adafactor, ... |
"""

from tfkit.training.optimizer.adam import Adam
from tfkit.training.optimizer.adamw import AdamW
from tfkit.training.optimizer.base import Optimizer
from tfkit.training.optimizer.torch import Torch

__all__ = ["Adam", "AdamW", "Optimizer", "Torch"]
