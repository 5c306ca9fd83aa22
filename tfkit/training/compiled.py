"""`train.compile`: training with torch.compile."""

from __future__ import annotations

import os
import shutil
from typing import cast

import torch

from tfkit.core.errors import RecipeError
from tfkit.functional.dropout import number_calls
from tfkit.models import Model
from tfkit.training.setup import Task

COMPILERS = ("g++", "clang++", "c++", "cl")  # C++ compilers that torch can use for CPU kernels


def compiled(task: Task) -> Model:
    """Return the model used in training steps. With `train.compile`, it is compiled and shares the weights."""
    if not task.settings.compile:
        return task.model
    module = cast(torch.nn.Module, torch.compile(task.model))
    number_calls(module)
    return cast(Model, module)


def check_compile(task: Task) -> None:
    """Raise RecipeError if `train.compile` is set but a required C++ compiler is missing."""
    compilers = [os.environ.get("CXX", ""), *filter(shutil.which, COMPILERS)]
    if task.settings.compile and task.train.device.type == "cpu" and not any(compilers):
        text = "CPU kernels require a C++ compiler, and none is installed; install one, such as g++, or remove this key"
        raise RecipeError([task.recipe.fault("train.compile", text)])
