"""Weights in int8 with a scale for each row: how a run is stored that `tfkit quantize` wrote.

A matrix W [rows columns] is stored as q = round(W / scale), from -127 to 127, and scale [rows] = max |W| / 127 of each
row, under its own name with `_scale` appended. Decoding in int8 rounds q * scale to the same q again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tfkit.core.errors import RunError
from tfkit.core.output import some

SCALE = "_scale"
LARGEST = 127


def matrices(model: nn.Module) -> set[str]:
    """The names of the weights that are stored in int8: of linear layers and of tables."""
    kinds = (nn.Linear, nn.Embedding)
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kinds)}


def rounded_rows(tensors: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The tensors with those of these names in int8, each followed by its scales."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in names or tensor.dim() != 2 or not tensor.is_floating_point():
            found[name] = tensor
            continue
        weight = tensor.detach().double()
        least = torch.finfo(torch.float32).tiny  # of a row of zeros
        scale = (weight.abs().amax(dim=1) / LARGEST).float().clamp(min=least)  # [rows]
        found[name] = (weight / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)  # [rows columns]
        found[name + SCALE] = scale
    return found


def restored_rows(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file with those in int8 as float32; raises RunError for scales that do not fit them."""
    stored = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    wrong = [problem for name, tensor in stored.items() if (problem := _problem(name, tensor, tensors))]
    if wrong:
        raise RunError(f"{path}: its weights in int8 cannot be read: {some(wrong)}")
    scales = {name + SCALE for name in stored}
    found = {name: tensor for name, tensor in tensors.items() if name not in scales}
    for name, tensor in stored.items():
        found[name] = tensor.float() * tensors[name + SCALE][:, None]
    return found


def _problem(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> str:
    """The message about a tensor in int8 whose scales are missing or wrong; empty if they are right."""
    scale = tensors.get(name + SCALE)
    if tensor.dim() != 2:
        return f"{name} has {tensor.dim()} axes, expected 2"
    if scale is None:
        return f"{name} has no {name}{SCALE}"
    if scale.dtype != torch.float32:
        return f"{name}{SCALE} holds {str(scale.dtype).removeprefix('torch.')}, expected float32"
    if scale.shape != tensor.shape[:1]:
        return f"{name}{SCALE} has shape {list(scale.shape)}, expected {list(tensor.shape[:1])}"
    if not bool((torch.isfinite(scale) & (scale > 0)).all()):
        return f"{name}{SCALE} holds NaN, infinite, zero or negative numbers"
    return ""
