"""`train.compile`: training with torch.compile, and checks for models that cannot be compiled."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import cast

import torch

from tfkit.components.feedforward.experts import Experts
from tfkit.core.errors import RecipeError, RunError
from tfkit.core.output import some
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


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Convert compiler errors to RunError."""
    try:
        yield
    except RuntimeError as error:
        # compared by name, because importing torch._dynamo takes a second
        if not type(error).__module__.startswith("torch._dynamo"):
            raise
        reason = " ".join(str(error).split("\n")[:2]).strip()
        raise RunError(f"torch cannot compile this model: {reason}; leave train.compile out") from error


def check_compile(task: Task) -> None:
    """Raise RecipeError if `train.compile` is set but impossible, incorrect or slower."""
    if task.settings.compile and (problem := _problem(task)):
        raise RecipeError([task.recipe.fault("train.compile", f"{problem}; leave it out")])


def _problem(task: Task) -> str:
    settings = task.settings
    lacking = sorted({name for plan in task.model.blueprint.stacks() for name in plan.without("compile")})
    for key, is_set in (("recompute", settings.recompute), ("teacher", task.distillation)):
        if is_set:
            return f"train.{key} runs layers in a way that is not compiled"
    if settings.parallel.pieces is not None:
        return "train.parallel.pieces promises identical bits, but compiled kernels round differently by batch size"
    if lacking:
        return f"{some(lacking)} cannot be compiled to a single graph"
    if any(isinstance(module, Experts) for module in task.model.modules()):
        return "shapes in a graph cannot depend on routing, so every expert would be computed for every token"
    compilers = [os.environ.get("CXX", ""), *filter(shutil.which, COMPILERS)]
    if task.train.device.type == "cpu" and not any(compilers):
        return "CPU kernels require a C++ compiler, such as g++, and none is installed"
    return ""
