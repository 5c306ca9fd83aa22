"""Weights as safetensors files, in which tied tensors are stored once. Nothing is pickled."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from tfkit.core.errors import RunError, TfkitWarning
from tfkit.core.output import json_line, some
from tfkit.models.base import Model
from tfkit.storage.files import whole
from tfkit.training.int8 import restored_rows
from tfkit.training.sharded import is_part
from tfkit.training.weights_file import ENTRY, TIED, entry_of, opened, read_entry

HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}  # names in the file format


@dataclass(frozen=True)
class Weights:
    """Distinct tensors by name. `tied` maps additional names to the names in `tensors`.

    `entry` is the metadata entry that describes the model; it is empty for models not built by tfkit.
    """

    tensors: dict[str, Tensor]
    tied: dict[str, str]
    entry: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Weights:
        """Collect the weights of `model` without copying. Of several tied names, the first one owns the tensor."""
        first: dict[tuple[object, ...], str] = {}
        tensors: dict[str, Tensor] = {}
        tied: dict[str, str] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            owner = first.setdefault(_place(tensor), name) if tensor.numel() else name
            if owner == name:
                tensors[name] = tensor.detach()
            else:
                tied[name] = owner
        return cls(tensors, tied, entry_of(model.blueprint) if isinstance(model, Model) else {})

    def by_name(self) -> dict[str, Tensor]:
        """Return all tensors by name, including tied names."""
        return self.tensors | {name: self.tensors[owner] for name, owner in self.tied.items() if owner in self.tensors}

    def save(self, path: Path) -> None:
        """Write the weights to a file atomically."""
        entry = {**self.entry, **({TIED: self.tied} if self.tied else {})}
        save_tensors(path, self.tensors, {ENTRY: json_line(entry)} if entry else {})

    @classmethod
    def read(cls, path: Path) -> Weights:
        """Read a weights file, not necessarily written by tfkit. Raise RunError if it is invalid."""
        tensors, metadata = read_tensors(path)
        entry = read_entry(path, metadata)
        try:
            # older files have a separate entry for tied names
            tied = entry.pop(TIED, {}) if entry else json.loads(metadata.get(TIED, "{}"))
        except (ValueError, RecursionError):
            tied = None
        if not isinstance(tied, dict):
            raise RunError(f"{path}: its list of tied tensors cannot be read")
        return cls(tensors, {name: str(owner) for name, owner in tied.items()}, entry)


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tied tensors."""
    if is_part(tensor):  # its storage may be empty
        return (id(tensor),)
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors as safetensors, atomically."""
    apart = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    with whole(path) as beside:
        try:
            # a single entry, because safetensors writes several in random order and files must be reproducible
            save_file(apart, beside, dict(metadata) or {"format": "pt"})
        except SafetensorError as error:  # usually a full disk
            raise RunError(f"{path}: cannot be written: {error}") from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and metadata of a safetensors file. Raise RunError if it is invalid."""
    with opened(path) as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


def tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in a safetensors file. Raise RunError if it is invalid."""
    with opened(path) as file:
        return list(file.keys())


def saved_dtype(path: Path) -> torch.dtype:
    """Return the dtype of a file's floating-point tensors; float32 if they differ. Raise RunError if it is invalid."""
    dtypes = _dtypes(path)
    halves = {HALVES[name] for name in dtypes if name in HALVES}
    return halves.pop() if len(halves) == 1 and "F32" not in dtypes else torch.float32


def _dtypes(path: Path) -> set[str]:
    """Return the names of all dtypes in a file."""
    with opened(path) as file:
        names = file.keys()
        return {file.get_slice(name).get_dtype() for name in names}


def holds_int8(path: Path) -> bool:
    """True if a file contains int8 weights. Raise RunError if it is invalid."""
    return "I8" in _dtypes(path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load all tensors of `model` from `path`, dequantizing int8. Warn about NaN and infinite values.

    Raise RunError for missing or unknown tensors, wrong shapes, and integers where floats are expected.
    """
    stored, target = Weights.read(path), model.state_dict()
    found = Weights(restored_rows(path, stored.tensors), stored.tied).by_name()
    ties = Weights.of(model).tied
    found |= {name: found[owner] for name, owner in ties.items() if name not in found and owner in found}
    wrong = [f"{name} is missing" for name in target if name not in found]
    wrong += [f"{name} is not in this model" for name in found if name not in target]
    for name, expected in target.items():
        tensor = found.get(name, expected)
        if tensor.shape != expected.shape:
            wrong.append(f"{name} has shape {list(tensor.shape)}, expected {list(expected.shape)}")
        elif expected.is_floating_point() and not tensor.is_floating_point():
            wrong.append(f"{name} holds {dtype_name(tensor)}, expected {dtype_name(expected)}")
    if wrong:
        raise RunError(f"{path}: does not fit this model: {some(wrong)}")
    model.load_state_dict(found)
    warn_not_finite(path, Weights.of(model).tensors)


def warn_not_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Warn about tensors of a file that contain NaN or infinite values."""
    names = not_finite(tensors)
    if names:
        what = f"{len(names)} of {len(tensors)} tensors contain NaN or infinite values: {some(names)}"
        warnings.warn(f"{path}: {what}", TfkitWarning, stacklevel=3)


def dtype_name(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype without "torch."."""
    return str(tensor.dtype).removeprefix("torch.")


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that contain NaN or infinite values."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if not floats:
        return []
    # if there is a NaN, minimum and maximum are NaN; `isfinite` on all values is 15 times slower
    bounds = torch.stack([torch.stack(tensor.detach().aminmax()).isfinite().all() for tensor in floats.values()])
    return [name for name, finite in zip(floats, bounds.tolist(), strict=True) if not finite]
