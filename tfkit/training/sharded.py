"""Sharded tensors: torch's DTensor, of which each process holds a shard along the first axis."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# DTensor is not imported here, because the import takes half a second and most runs do not need it


def is_part(tensor: Tensor) -> bool:
    """True if this tensor is sharded over processes."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard, which may be empty. Return other tensors unchanged."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor. All processes must call this. Return other tensors unchanged."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Copy a whole tensor, sharded in the same way as `like`."""
    copy = torch.empty_like(like)
    if hasattr(like, "device_mesh"):
        parts = tensor.chunk(like.device_mesh.size())
        rank = like.device_mesh.get_local_rank()
        local(copy).copy_(parts[rank] if rank < len(parts) else tensor[:0])
        return copy
    return copy.copy_(tensor)


def gathered(tensors: Mapping[str, Tensor], kept: bool) -> dict[str, Tensor]:
    """Gather sharded tensors into main memory, one at a time. The result is empty unless `kept`.

    All processes must call this.
    """
    found = {}
    for name, tensor in tensors.items():
        one = whole(tensor)
        if kept:
            found[name] = one.cpu() if is_part(tensor) else one
    return found


def exchange(optimizer: torch.optim.Optimizer, before: Mapping[str, nn.Parameter], after: nn.Module) -> None:
    """Replace an optimizer's parameters `before` with the sharded parameters of `after`, and shard its state.

    Only Adam's fused kernels support sharded tensors, so other optimizers become unfused.
    """
    fused = isinstance(optimizer, torch.optim.Adam)  # and its subclass AdamW
    new = {id(before[name]): parameter for name, parameter in after.named_parameters()}
    for group in optimizer.param_groups:
        group["params"] = [new[id(one)] for one in group["params"]]
        if "fused" in group and not fused:
            group["fused"] = False
    for one, values in [(one, optimizer.state.pop(one)) for one in list(optimizer.state)]:
        optimizer.state[new[id(one)]] = _divided(values, new[id(one)])


def _divided(values: Mapping[str, object], parameter: nn.Parameter) -> dict[str, object]:
    """Shard the tensors of an optimizer's state that have the shape of the parameter."""
    return {
        name: part_of(value, parameter.detach())
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for name, value in values.items()
    }
