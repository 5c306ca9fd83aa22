"""`train.recompute`: activation recomputation, and checks for models that do not support it."""

from __future__ import annotations

from torch import nn

from tfkit.components.feedforward.experts import Routing
from tfkit.core.errors import RecipeError
from tfkit.models.stack import Stack
from tfkit.recipe.load import Recipe


def recompute_layers(recipe: Recipe, trained: nn.Module) -> None:
    """Apply `train.recompute` to all stacks. Raise RecipeError if it would change the gradients."""
    requested = recipe.train.recompute
    stacks = [module for module in trained.modules() if isinstance(module, Stack)]
    if requested and (problem := _problem(stacks, trained)):
        raise RecipeError([recipe.fault("train.recompute", problem)])
    for stack in stacks:
        stack.recompute = len(stack.layers) if requested == "all" else requested


def _problem(stacks: list[Stack], trained: nn.Module) -> str:
    if any(stack.plan.last_state for stack in stacks):
        return "layers of this model carry state between calls, which recomputation would change; remove this key"
    if any(isinstance(module, Routing) and module.config.selection_rate for module in trained.modules()):
        text = "each forward updates the selection bias of experts, so recomputation would choose other experts"
        return f"{text}; remove this key, or set router.selection_rate: 0"
    return ""
