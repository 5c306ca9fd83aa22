"""Tensors of which each process holds a part: torch's DTensor, divided along the first axis."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# the class is not imported here: that takes half a second, and most processes never see one


def is_part(tensor: Tensor) -> bool:
    """True if other processes hold the rest of the tensor."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the part of this process, which may be empty; a whole tensor as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor; all processes call this together."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a whole tensor, divided as `like` is."""
    copy = torch.empty_like(like)
    if hasattr(like, "device_mesh"):
        parts = tensor.chunk(like.device_mesh.size())
        rank = like.device_mesh.get_local_rank()
        local(copy).copy_(parts[rank] if rank < len(parts) else tensor[:0])
        return copy
    return copy.copy_(tensor)


def gathered(tensors: Mapping[str, Tensor], kept: bool) -> dict[str, Tensor]:
    """Return whole tensors in main memory, gathered one at a time by all processes; empty unless `kept`."""
    found = {}
    for name, tensor in tensors.items():
        one = whole(tensor)
        if kept:
            found[name] = one.cpu() if is_part(tensor) else one
    return found


def exchange(optimizer: torch.optim.Optimizer, before: Mapping[str, nn.Parameter], after: nn.Module) -> None:
    """Let an optimizer update the parameters of `after`, which were those of `before`, from the same state.

    Of torch's fused kernels only those of Adam take divided tensors.
    """
    fused = isinstance(optimizer, torch.optim.Adam)  # and its subclass AdamW
    new = {id(before[name]): parameter for name, parameter in after.named_parameters()}
    for group in optimizer.param_groups:
        group["params"] = [new[id(one)] for one in group["params"]]
        if group.get("fused") and not fused and any(map(is_part, group["params"])):
            group["fused"] = False
    for one, values in [(one, optimizer.state.pop(one)) for one in list(optimizer.state)]:
        optimizer.state[new[id(one)]] = _divided(values, new[id(one)])


def _divided(values: Mapping[str, object], parameter: nn.Parameter) -> dict[str, object]:
    """Divide those tensors of an optimizer's state that have a number for each of the parameter."""
    return {
        name: part_of(value, parameter.detach())
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for name, value in values.items()
    }
