"""Weights as safetensors files, in which tied tensors are stored once: headers, int8, and sharded tensors.

A matrix W [rows columns] is stored as q = round(W / scale), from -127 to 127, and scale [rows] = max |W| / 127 under
the name of W with the suffix `_scale`. Quantizing q * scale again, as int8 decoding does, yields the same q.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import tfkit
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import spell
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.core.output import json_line, some
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_saved
from tfkit.recipe.text.source import LANGUAGE
from tfkit.recipe.views.resolved import model_values
from tfkit.storage.files import whole

# DTensor is not imported here, because the import takes half a second and most runs do not need it


def is_part(tensor: Tensor) -> bool:
    """True if this tensor is sharded over processes."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard, which may be empty. Return other tensors unchanged."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def whole_tensor(tensor: Tensor) -> Tensor:
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
        one = whole_tensor(tensor)
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


ENDING = ".safetensors"
ENTRY = "tfkit"  # the only metadata entry, because several would be written in undefined order
RECIPE, DIGEST, VERSION, TIED = "recipe", "recipe_sha256", "version", "tied"  # keys of the entry
KEYS = ("tfkit", "model")  # the keys of the stored recipe


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file for reading. Raise RunError if it is missing or invalid."""
    if not path.is_file():
        raise RunError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: not a complete safetensors file: {error}") from None


def is_weights_file(path: str | Path) -> bool:
    """True if a path ends in .safetensors and is not a folder."""
    return Path(path).suffix == ENDING and not Path(path).is_dir()


def entry_of(blueprint: Blueprint) -> dict[str, Any]:
    """Return the metadata entry of a model: its full recipe, the recipe's SHA-256, and tfkit's version."""
    recipe = {"tfkit": LANGUAGE, "model": spell(model_values(blueprint))}
    return with_digest({VERSION: tfkit.__version__, DIGEST: "", RECIPE: recipe})


def with_digest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with the SHA-256 of its recipe filled in."""
    return {**entry, DIGEST: _digest(entry[RECIPE])}


def read_entry(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Parse tfkit's metadata entry, or return {} if there is none. Raise RunError if it is invalid."""
    try:
        entry = json.loads(metadata.get(ENTRY, "{}"))
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise RunError(f"{path}: the entry {ENTRY!r} of the metadata cannot be read; the file is damaged")
    return entry


def recipe_in(
    path: Path, imports: Sequence[str | Path] = (), sets: Sequence[str] = (), variants: Sequence[str] = ()
) -> Recipe:
    """Load the model's recipe from a weights file. No code is imported except `imports`.

    Raise RunError if the file is damaged or contains no recipe, RecipeError if the recipe is invalid.
    """
    with opened(path) as file:
        entry = read_entry(path, file.metadata() or {})
    recipe = entry.get(RECIPE)
    if recipe is None:
        why = "it was not written by tfkit, or by an older version"
        raise RunError(f"{path}: contains no recipe: {why}; load its run folder instead")
    if not isinstance(recipe, dict) or sorted(recipe) != sorted(KEYS) or _digest(recipe) != entry.get(DIGEST):
        raise RunError(f"{path}: its recipe has changed since it was written; the file is damaged or was edited")
    return load_saved(recipe, sets=sets, variants=variants, imports=imports, label=str(path))


def check_fits(path: Path, blueprint: Blueprint) -> None:
    """Raise RunError if tensors of the model are missing from the file or have other shapes. Nothing is allocated."""
    with opened(path) as file:
        names = file.keys()
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    seen: set[int] = set()
    for name, tensor in build_model(blueprint, device="meta").state_dict(keep_vars=True).items():
        if id(tensor) not in seen and shapes.get(name) != list(tensor.shape):
            found = f"has shape {shapes[name]}" if name in shapes else "is missing"
            raise RunError(f"{path}: does not fit its recipe: {name} {found}, expected shape {list(tensor.shape)}")
        seen.add(id(tensor))


def _digest(recipe: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode("ascii")).hexdigest()


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
    from safetensors.torch import save_file

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
