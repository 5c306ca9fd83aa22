"""Names of a model's saved tensors, and the weight file that an import writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError
from tfkit.core.output import some
from tfkit.interop.huggingface.convert import to_own
from tfkit.interop.huggingface.files import CONFIG, COUNTED, open_checkpoint
from tfkit.interop.huggingface.source import Source
from tfkit.models.build import build_model
from tfkit.training.weights import Weights, dtype_name, warn_not_finite
from tfkit.training.weights_file import entry_of


def own_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a state_dict under their first names, and a map of additional names to first names."""
    first: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        owner = first.setdefault(id(tensor), name)
        if owner == name:
            tensors[name] = tensor
        else:
            tied[name] = owner
    return tensors, tied


def write_weights(read: Source, blueprint: Blueprint, file: Path, dtype: torch.dtype) -> tuple[list[str], int]:
    """Convert and write the weights. Return the names of unused tensors and the number of parameters."""
    own, tied = own_tensors(build_model(blueprint, device="meta"))
    shapes = {name: tensor.shape for name, tensor in own.items()}
    with open_checkpoint(read.folder, dtype) as checkpoint:
        brought = to_own(read.family, checkpoint, shapes, blueprint)
    ordered = {name: brought.tensors[name] for name in shapes}
    _check_numbers(read.folder, own, ordered)
    Weights(ordered, tied, entry_of(blueprint)).save(file)
    return brought.unread, sum(tensor.numel() for name, tensor in own.items() if isinstance(tensor, nn.Parameter))


def _check_numbers(folder: Path, own: Mapping[str, Tensor], brought: Mapping[str, Tensor]) -> None:
    """Raise DataError for integer tensors. Warn about NaN and infinite values."""
    wrong = [
        f"{name} ({dtype_name(tensor)})"
        for name, tensor in brought.items()
        if own[name].is_floating_point() and not tensor.is_floating_point()
    ]
    if wrong:
        raise DataError(f"{folder}: the tensors of {some(wrong)} are not floating-point, so they cannot be weights")
    warn_not_finite(folder, brought)


def check_depth(read: Source, blueprint: Blueprint) -> None:
    """Raise DataError if the model has too many layers, or more layers than the files have tensors."""
    layers = sum(plan.num_layers for plan in blueprint.stacks())
    entries = [entry for plan in blueprint.stacks() for entry in plan.entries]
    apart = entries.count(-1) + len({entry for entry in entries if entry >= 0})  # equal entries share weights
    with open_checkpoint(read.folder) as checkpoint:
        held = len(checkpoint)
    if layers > COUNTED["layer"] or apart > held:
        text = f"describes {layers:,} layers; the limit is {COUNTED['layer']:,}, and the files contain {held:,} tensors"
        raise DataError(f"{read.folder / CONFIG}: {text}")
