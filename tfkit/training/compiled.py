"""`train.compile`: training steps through torch.compile."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import cast

import torch

from tfkit.core.errors import RecipeError, RunError
from tfkit.functional.dropout import number_calls
from tfkit.models import Model
from tfkit.training.setup import Task

COMPILERS = ("g++", "clang++", "c++", "cl")  # one of them writes the kernels of a CPU


def compiled(task: Task) -> Model:
    """Return the model that steps compute with: compiled, with the same weights, if `train.compile` is set."""
    if not task.settings.compile:
        return task.model
    module = cast(torch.nn.Module, torch.compile(task.model))
    number_calls(module)
    return cast(Model, module)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Convert errors of the compiler within the block to RunError."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith("torch._dynamo"):  # not imported here: that takes a second
            raise
        reason = " ".join(str(error).split("\n")[:2]).strip()
        raise RunError(f"torch cannot compile this model: {reason}; leave train.compile out") from error


def check_compile(task: Task) -> None:
    """Raise RecipeError if `train.compile` is set and nothing on this machine compiles."""
    compilers = [os.environ.get("CXX", ""), *filter(shutil.which, COMPILERS)]
    if task.settings.compile and task.train.device.type == "cpu" and not any(compilers):
        text = "kernels of a CPU need a C++ compiler, such as g++, and none is installed; leave it out"
        raise RecipeError([task.recipe.fault("train.compile", text)])
