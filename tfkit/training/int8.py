"""int8 weights with one scale per row, as written by `tfkit quantize`.

A matrix W [rows columns] is stored as q = round(W / scale), from -127 to 127, and scale [rows] = max |W| / 127 under
the name of W with the suffix `_scale`. Quantizing q * scale again, as int8 decoding does, yields the same q.
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
    """Return the names of the weights to store as int8: those of linear layers and embeddings."""
    kinds = (nn.Linear, nn.Embedding)
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kinds)}


def rounded_rows(tensors: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """Quantize the named matrices to int8, and add their scales."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in names or tensor.dim() != 2 or not tensor.is_floating_point():
            found[name] = tensor
            continue
        weight = tensor.detach().double()
        least = torch.finfo(torch.float32).tiny  # avoids division by zero in zero rows
        scale = (weight.abs().amax(dim=1) / LARGEST).float().clamp(min=least)  # [rows]
        found[name] = (weight / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)  # [rows columns]
        found[name + SCALE] = scale
    return found


def restored_rows(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert int8 tensors to float32. Raise RunError if scales are missing or invalid."""
    stored = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    wrong = [problem for name, tensor in stored.items() if (problem := _problem(name, tensor, tensors))]
    if wrong:
        raise RunError(f"{path}: its int8 weights cannot be read: {some(wrong)}")
    scales = {name + SCALE for name in stored}
    found = {name: tensor for name, tensor in tensors.items() if name not in scales}
    for name, tensor in stored.items():
        found[name] = tensor.float() * tensors[name + SCALE][:, None]  # [rows columns]
    return found


def _problem(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> str:
    """Return an error message for a tensor without valid scales, or ""."""
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
