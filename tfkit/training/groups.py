"""Parameter groups of an optimizer with their own learning rate and weight decay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tfkit.core.errors import UsageError
from tfkit.core.output import counted
from tfkit.models import Model
from tfkit.models.parametrization import growths
from tfkit.recipe.settings.parameters import decay_of, depths_of, parameters_of, rate_of
from tfkit.recipe.settings.sections import Train

RATE = "rate"  # key of a group's learning-rate factor
ADAM = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax)
SHOWN = 6  # maximum number of groups listed individually


@dataclass(frozen=True)
class Share:
    """Factors on a parameter's learning rate, weight decay and eps. `weight_decay` overrides the optimizer's."""

    rate: float = 1.0
    weight_decay: float | None = None
    decay: float = 1.0
    eps: float = 1.0


def regroup(optimizer: torch.optim.Optimizer, model: Model, settings: Train) -> list[str]:
    """Split an optimizer's groups by `train.groups`, `train.layer_decay` and muP. Return lines that describe them.

    Raise UsageError if a group sets a weight decay but the optimizer has none, or if muP is used without Adam.
    """
    chosen = model.blueprint.parametrization
    if not settings.groups and settings.layer_decay is None and chosen is None:
        return [_line(group) for group in optimizer.param_groups if "by" in group]
    if chosen is not None and not isinstance(optimizer, ADAM):
        raise UsageError(f"model.parametrization: requires a variant of Adam, got {type(optimizer).__name__}")
    shares = _shares(model, settings)
    optimizer.param_groups[:] = [part for group in optimizer.param_groups for part in _parts(group, shares)]
    groups = optimizer.param_groups
    if len(groups) <= SHOWN:
        return [_line(group) for group in groups]
    rates = sorted({group[RATE] for group in groups})
    return [f"{len(groups)} groups of parameters, with learning rates x {rates[0]:.4g} to x {rates[-1]:.4g}"]


def _shares(model: Model, settings: Train) -> dict[int, Share]:
    """Return the `Share` of each parameter, by id."""
    depths = depths_of(model.blueprint)
    found = {
        id(one.value): Share(
            rate_of(one, settings.groups, settings.layer_decay, depths), decay_of(one, settings.groups)
        )
        for one in parameters_of(model)
    }
    chosen = model.blueprint.parametrization
    for growth in growths(model, model.blueprint) if chosen is not None else ():
        share, exponent = found[id(growth.weight)], chosen.depth_exponent if chosen is not None else 1.0
        rate = share.rate * growth.rate(exponent)
        found[id(growth.weight)] = replace(share, rate=rate, decay=growth.decay, eps=growth.eps(exponent))
    return found


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, scaled by its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(RATE, 1.0)


def _parts(group: dict[str, Any], shares: dict[int, Share]) -> list[dict[str, Any]]:
    """Split a group into one group per distinct `Share`."""
    parts: dict[Share, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(shares.get(id(parameter), Share()), []).append(parameter)
    options = {key: value for key, value in group.items() if key != "params"}
    return [{**options, "params": found, RATE: share.rate} | _own(group, share) for share, found in parts.items()]


def _own(group: dict[str, Any], share: Share) -> dict[str, float]:
    """Return the weight decay and eps of a share, if they differ from the group's."""
    if share.weight_decay is not None and "weight_decay" not in group:
        raise UsageError("train.groups: this optimizer has no weight_decay; use adamw")
    decay = group.get("weight_decay", 0.0) if share.weight_decay is None else share.weight_decay
    own = {"weight_decay": decay * share.decay} if share.weight_decay is not None or share.decay != 1.0 else {}
    return own | ({"eps": group["eps"] * share.eps} if share.eps != 1.0 and "eps" in group else {})


def _line(group: dict[str, Any]) -> str:
    numbers = sum(parameter.numel() for parameter in group["params"])
    decay = f", weight decay {group['weight_decay']:g}" if "weight_decay" in group else ""
    by = f"{group['by']}, " if "by" in group else ""
    sizes = f"{counted(len(group['params']), 'tensor')}, {counted(numbers, 'number')}"
    return f"{by}rate x {group.get(RATE, 1.0):.4g}{decay}: {sizes}"
