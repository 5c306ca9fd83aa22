"""Their folders: config.json, safetensors in one file or several, and how a name on the hub becomes a folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tfkit.core.errors import DataError

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
COUNTED, MOST = ("layer", "label", "group"), 1_000_000  # what keys of a config.json count, and up to how many
WANTED = ("*.json", "*.safetensors", "*.txt", "*.model")  # of a repository on the hub; nothing that is code or pickled


def folder_of(source: str) -> Path:
    """The folder `source`, or a copy of the repository of that name on the hub; raises DataError for neither."""
    path = Path(source)
    if path.is_dir():
        return path
    if path.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise DataError(f"{source}: no such folder")
    return _downloaded(source)


def _downloaded(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        needs = 'asking the hub for it needs the package huggingface_hub: pip install "tfkit[hf]"'
        raise DataError(f"{name} is no folder here, and {needs}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED)))
    except Exception as error:  # the hub's own errors have no common class
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{name} is no folder here, and the hub does not give it: {told}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says; raises DataError naming the file."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder}: has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected a mapping")
    _check_counts(path, config)
    return config


def _check_counts(path: Path, config: Mapping[str, Any]) -> None:
    """Raise DataError for more of a thing than any model has: families list things by their number."""
    for key, value in config.items():
        if isinstance(value, dict):
            _check_counts(path, value)
        elif isinstance(value, int) and value > MOST and any(thing in key for thing in COUNTED):
            raise DataError(f"{path}: {key}: {value:,} is too many; this is taken up to {MOST:,}")


class Checkpoint(Mapping[str, Tensor]):
    """Their tensors by name, each read when it is asked for; numbers that are no whole ones in `dtype`, where given."""

    def __init__(self, files: Mapping[str, Any], dtype: torch.dtype | None = None) -> None:
        self._files = files
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@contextmanager
def open_checkpoint(folder: Path, dtype: torch.dtype | None = None) -> Iterator[Checkpoint]:
    """The tensors of a folder; raises DataError for files that are missing, broken or pickled."""
    paths = _paths(folder)
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in paths:
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise DataError(f"{path}: cannot be read as safetensors: {error}") from None
            files |= dict.fromkeys(opened.keys(), opened)
        yield Checkpoint(files, dtype)


def _paths(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        return _sharded(folder)
    pickled = [name for name in PICKLED if (folder / name).is_file()]
    if pickled:
        raise DataError(_how_to_convert(folder, pickled[0]))
    raise DataError(f"{folder}: has no {SINGLE}")


def _sharded(folder: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{folder / INDEX}: is no index of sharded tensors") from None
    paths = [folder / name for name in names]
    for path in paths:
        if path.parent != folder:
            raise DataError(f"{folder / INDEX}: names {path.name}, which is not beside it")
        if not path.is_file():
            raise DataError(f"{folder}: the index names {path.name}, which is missing")
    return paths


def _how_to_convert(folder: Path, name: str) -> str:
    """Why pickled weights are not read, and the command that writes them as safetensors."""
    if not name.startswith("pytorch_model"):
        return f"{folder / name}: only safetensors are read"
    script = (
        "import pathlib, torch, safetensors.torch; "
        f"folder = pathlib.Path({json.dumps(str(folder))}); "
        'files = sorted(folder.glob("pytorch_model*.bin")); '
        "pairs = [pair for file in files for pair in torch.load(file, weights_only=True).items()]; "
        "weights = {name: tensor.contiguous().clone() for name, tensor in pairs}; "
        f'safetensors.torch.save_file(weights, folder / "{SINGLE}")'
    )
    command = shlex.join(["python", "-c", script])
    return f"{folder / name}: pickled weights can hold code and are not read; convert them once:\n  {command}"
