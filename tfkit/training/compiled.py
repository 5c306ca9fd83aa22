"""`train.compile`: training steps through torch.compile, and models for which it is refused."""

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
    """Raise RecipeError if `train.compile` is set and would be wrong, slower or impossible."""
    if task.settings.compile and (problem := _problem(task)):
        raise RecipeError([task.recipe.fault("train.compile", f"{problem}; leave it out")])


def _problem(task: Task) -> str:
    settings = task.settings
    lacking = sorted({name for plan in task.model.blueprint.stacks() for name in plan.without("compile")})
    for key, is_set in (("recompute", settings.recompute), ("teacher", task.distillation)):
        if is_set:
            return f"train.{key} runs layers in a way that is not compiled"
    if settings.parallel.pieces is not None:
        return "train.parallel.pieces promises the same bits, and compiled kernels round by the size of a batch"
    if lacking:
        return f"{some(lacking)} does not compile to one graph"
    if any(isinstance(module, Experts) for module in task.model.modules()):
        return "experts would all be computed for every token, as the shapes of a graph must not depend on a choice"
    found = [os.environ.get("CXX", ""), *filter(shutil.which, COMPILERS)]
    if task.train.device.type == "cpu" and not any(found):
        return "kernels of a CPU need a C++ compiler, such as g++, and none is installed"
    return ""
