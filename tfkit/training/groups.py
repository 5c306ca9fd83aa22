"""The groups of an optimizer: parameters with one factor on the learning rate, and one weight decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tfkit.core.errors import UsageError
from tfkit.core.output import counted
from tfkit.models import Model
from tfkit.recipe.settings.groups import decay_of, depths_of, parameters_of, rate_of
from tfkit.recipe.settings.sections import Train

RATE = "rate"  # the key of a group that holds its factor
SHOWN = 6  # groups that are told one by one


def regroup(optimizer: torch.optim.Optimizer, model: Model, settings: Train) -> list[str]:
    """Split the groups of an optimizer as `train.groups` and `train.layer_decay` say; returns what became of them.

    Raises UsageError for a weight decay that the optimizer does not know.
    """
    if not settings.groups and settings.layer_decay is None:
        return []
    depths = depths_of(model.blueprint)
    wanted = {
        id(one.value): (rate_of(one, settings.groups, settings.layer_decay, depths), decay_of(one, settings.groups))
        for one in parameters_of(model)
    }
    optimizer.param_groups[:] = [part for group in optimizer.param_groups for part in _parts(group, wanted)]
    groups = optimizer.param_groups
    if len(groups) <= SHOWN:
        return [_line(group) for group in groups]
    rates = sorted({group[RATE] for group in groups})
    return [f"{len(groups)} groups of parameters, at rates x {rates[0]:.4g} to x {rates[-1]:.4g}"]


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group its share of the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(RATE, 1.0)


def _parts(group: dict[str, Any], wanted: dict[int, tuple[float, float | None]]) -> list[dict[str, Any]]:
    """A group in parts of one factor and one decay each."""
    parts: dict[tuple[float, float | None], list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(wanted.get(id(parameter), (1.0, None)), []).append(parameter)
    options = {key: value for key, value in group.items() if key != "params"}
    return [{**options, "params": found, RATE: rate} | _decay(group, decay) for (rate, decay), found in parts.items()]


def _decay(group: dict[str, Any], decay: float | None) -> dict[str, float]:
    if decay is None:
        return {}
    if "weight_decay" not in group:
        raise UsageError("train.groups: this optimizer has no weight_decay; adamw has one")
    return {"weight_decay": decay}


def _line(group: dict[str, Any]) -> str:
    numbers = sum(parameter.numel() for parameter in group["params"])
    decay = f", weight decay {group['weight_decay']:g}" if "weight_decay" in group else ""
    return f"rate x {group[RATE]:.4g}{decay}: {counted(len(group['params']), 'tensor')}, {counted(numbers, 'number')}"
