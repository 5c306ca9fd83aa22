"""Divided tensors: torch's DTensor, split over the processes along the first axis."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# importing DTensor takes half a second, so tensors are recognized by its methods


def is_part(tensor: Tensor) -> bool:
    """True if the tensor is divided."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, which may be empty. Other tensors are returned unchanged."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """Gather a divided tensor. All processes must call this. Other tensors are returned unchanged."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a whole tensor, divided like `like`."""
    copy = torch.empty_like(like)
    if hasattr(like, "device_mesh"):
        parts = tensor.chunk(like.device_mesh.size())
        rank = like.device_mesh.get_local_rank()
        local(copy).copy_(parts[rank] if rank < len(parts) else tensor[:0])
        return copy
    return copy.copy_(tensor)


def gathered(tensors: Mapping[str, Tensor], kept: bool) -> dict[str, Tensor]:
    """Gather divided tensors one by one into main memory. All processes must call this; return {} unless `kept`."""
    found = {}
    for name, tensor in tensors.items():
        one = whole(tensor)
        if kept:
            found[name] = one.cpu() if is_part(tensor) else one
    return found


def exchange(optimizer: torch.optim.Optimizer, before: Mapping[str, nn.Parameter], after: nn.Module) -> None:
    """Replace the parameters of an optimizer by the divided ones of `after`, by name, and divide its state."""
    if not any(map(is_part, after.parameters())):
        return
    fused = isinstance(optimizer, torch.optim.Adam)  # or AdamW: other fused kernels do not accept DTensors
    new = {id(before[name]): parameter for name, parameter in after.named_parameters()}
    for group in optimizer.param_groups:
        group["params"] = [new[id(one)] for one in group["params"]]
        if "fused" in group and not fused:
            group["fused"] = False
    for one, values in [(one, optimizer.state.pop(one)) for one in list(optimizer.state)]:
        optimizer.state[new[id(one)]] = _divided(values, new[id(one)])


def _divided(values: Mapping[str, object], parameter: nn.Parameter) -> dict[str, object]:
    """Divide the tensors of an optimizer's state that have the shape of the parameter."""
    return {
        name: part_of(value, parameter.detach())
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for name, value in values.items()
    }
