"""Hugging Face model folders: config.json, single or sharded safetensors, and downloads from the hub."""

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

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import DataError, optional
from tfkit.core.output import some
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.strangers import file_in, mapping_in
from tfkit.storage.hub import PREFIX, local_repository

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
# limits of counts in config.json, by a word in their keys, since families create that many objects
COUNTED = {"layer": 10_000, "expert": 100_000, "label": 1_000_000, "group": 1_000_000, "pattern": 10_000}
ADAPTER = "adapter_config.json"  # of peft
# dtypes of tensors that are weights or constants, and ends of names that only quantized weights have
PLAIN = ("F64", "F32", "F16", "BF16", "I64", "BOOL")
OF_QUANTIZED = ("scale_inv", "weight_scale", "weight_packed", ".qweight", ".scales", ".absmax", ".SCB", "proj_blocks")
DOWNLOADED = ("*.json", "*.safetensors", "*.txt", "*.model")  # files from the hub: no code, no pickles


def folder_of(source: str) -> Path:
    """Return the folder `source`, or download the hub repository of that name. Raise DataError if there is neither."""
    path, source = Path(source), source.removeprefix(PREFIX)
    if path.is_dir():
        return path
    if path.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise DataError(f"{source}: no such folder")
    return local_repository(source) or _downloaded(source)


def _downloaded(name: str) -> Path:
    hub = optional("huggingface_hub", "hf", f"{name} is not a local folder, and downloading it from the hub needs")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(DOWNLOADED)))
    except Exception as error:  # the hub's errors have no common class
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{name} is not a local folder, and its download from the hub failed: {reason}") from None


def read_config(folder: Path) -> JsonObject:
    """Read config.json. Raise DataError if it is missing or invalid."""
    path, adapter = file_in(folder, CONFIG), file_in(folder, ADAPTER)
    if adapter is not None:
        about = mapping_in(adapter)
        raise DataError(
            f"{adapter}: the folder holds an adapter of peft ({about.get('peft_type')}) for the model "
            f"{about.get('base_model_name_or_path')}; merge it with peft (merge_and_unload) and save the whole model"
        )
    if path is None:
        raise DataError(f"{folder}: has no {CONFIG}")
    config = mapping_in(path)
    _check_counts(path, config)
    return config


def _check_counts(path: Path, config: ConfigJson) -> None:
    """Raise DataError for absurdly large counts, since families would create lists of that length."""
    for key, value in config.items():
        if isinstance(value, dict):
            _check_counts(path, value)
        elif isinstance(value, int):
            most = min((most for thing, most in COUNTED.items() if thing in key.lower()), default=value)
            if value > most:
                raise DataError(f"{path}: {key!r}: {value:,} exceeds the limit of {most:,}")


class Checkpoint(Mapping[str, Tensor]):
    """Checkpoint tensors by name, loaded on access; floating-point tensors are converted to `dtype`, if given."""

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

    def check_plain(self, folder: Path, config: ConfigJson) -> None:
        """Raise DataError for quantized weights."""
        settings = config.get("quantization_config")
        method = settings.get("quant_method") if isinstance(settings, Mapping) else None
        named = [name for name in self._files if name.endswith(OF_QUANTIZED)]
        packed = [name for name, file in self._files.items() if file.get_slice(name).get_dtype() not in PLAIN]
        if named or (settings and packed):
            how = f" with {method}" * (method is not None)
            raise DataError(
                f"{folder}: the weights are quantized{how} ({some(named or packed, 2)}), which is not supported; save "
                "them in float32 or bfloat16 with transformers (model.dequantize()) and without quantization_config"
            )


@contextmanager
def open_checkpoint(folder: Path, dtype: torch.dtype | None = None) -> Iterator[Checkpoint]:
    """Open the tensor files in a folder. Raise DataError for missing, broken or pickled files."""
    paths = _paths(folder)
    with ExitStack() as stack:
        files: dict[str, object] = {}
        for path in paths:
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise DataError(f"{path}: cannot be read as safetensors: {error}") from None
            files |= dict.fromkeys(opened.keys(), opened)
        yield Checkpoint(files, dtype)


def _paths(folder: Path) -> list[Path]:
    single = file_in(folder, SINGLE)
    if single is not None:
        return [single]
    index = file_in(folder, INDEX)
    if index is not None:
        return _sharded(folder, index)
    pickled = [name for name in PICKLED if (folder / name).is_file()]
    if pickled:
        raise DataError(_how_to_convert(folder, pickled[0]))
    shards = sorted(path.name for path in folder.glob("model-*-of-*.safetensors"))
    raise DataError(f"{folder}: has no {SINGLE}" + f"; its shards ({some(shards, 2)}) need {INDEX}" * bool(shards))


def _sharded(folder: Path, index: Path) -> list[Path]:
    listed = mapping_in(index).get("weight_map")
    names = listed.values() if isinstance(listed, dict) else ()
    if not names or not all(isinstance(name, str) and "\0" not in name for name in names):
        raise DataError(f"{index}: is not an index of sharded tensors")
    paths = []
    for name in sorted(set(names)):
        if (folder / name).parent != folder or name in ("", ".", ".."):
            raise DataError(f"{index}: names {name!r}, which is not in the same folder")
        path = file_in(folder, name)
        if path is None:
            raise DataError(f"{folder}: the index names {name!r}, which is missing")
        paths.append(path)
    return paths


def _how_to_convert(folder: Path, name: str) -> str:
    """Return the error message for pickled weights, with a command that converts them to safetensors."""
    if not name.startswith("pytorch_model"):
        return f"{folder / name}: only safetensors are supported"
    script = (
        "import pathlib, torch, safetensors.torch; "
        f"folder = pathlib.Path({json.dumps(str(folder))}); "
        'files = sorted(folder.glob("pytorch_model*.bin")); '
        "pairs = [pair for file in files for pair in torch.load(file, weights_only=True).items()]; "
        "weights = {name: tensor.contiguous().clone() for name, tensor in pairs}; "
        f'safetensors.torch.save_file(weights, folder / "{SINGLE}")'
    )
    command = shlex.join(["python", "-c", script])
    return f"{folder / name}: pickled weights can execute code and are not read; convert them once:\n  {command}"
