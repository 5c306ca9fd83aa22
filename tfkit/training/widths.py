"""Check that custom parts preserve the shape of their input."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor, nn

from tfkit.core.blame import own_parts
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component
from tfkit.core.errors import UsageError
from tfkit.core.plugins import origin
from tfkit.models.sample import build_sample, meta_inputs

# slots whose parts must return a tensor of their input's shape
KEEPERS = frozenset({"attention", "mixer", "feedforward", "norm", "activation"})
LENGTH = 4


def check_widths(blueprint: Blueprint) -> None:
    """Raise UsageError if a custom part changes the shape of its input. Nothing is allocated."""
    own = tuple(part for part in own_parts() if part.part_slot in KEEPERS)
    model = build_sample(blueprint) if own else None
    parts = [] if model is None else [module for module in model.modules() if isinstance(module, own)]
    if model is None or not parts:
        return
    for module in parts:
        module.register_forward_hook(_check)
    length = min(plan.max_length or LENGTH for plan in blueprint.stacks())
    with contextlib.suppress(RuntimeError, TypeError, ValueError):  # training reports other failures
        model(**meta_inputs(model, min(length, LENGTH), batch=2))


def _check(module: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
    """Raise UsageError if output and input shapes differ."""
    if not isinstance(module, Component) or not inputs or not isinstance(inputs[0], Tensor):
        return
    part, given = type(module), list(inputs[0].shape)
    got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if got != given:
        raise UsageError(
            f"{part.part_slot} '{part.part_name}' of {origin(part)}: returns {got} for an input of {given}; the output "
            "must have the shape of the input"
        )
