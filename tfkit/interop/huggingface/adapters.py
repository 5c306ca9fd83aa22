"""Export of a run's low-rank adapter to a peft folder: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.interop.huggingface.convert import to_checkpoint
from tfkit.interop.huggingface.exporting import ids_of, imported_as
from tfkit.interop.huggingface.matching import FamilyConfig, matching_family
from tfkit.interop.huggingface.weights import own_tensors
from tfkit.run import Run
from tfkit.runs.folder import ADAPTER, RunFolder
from tfkit.runs.record import check
from tfkit.runs.weights import read_tensors, save_tensors
from tfkit.storage.files import write_json
from tfkit.storage.folders import target_folder, whole_folder
from tfkit.training.adapter import Lora

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TASKS = {"ForCausalLM": "CAUSAL_LM", "ForConditionalGeneration": "SEQ_2_SEQ_LM"}  # class suffix -> task_type


def export_adapter(run: Run, target: str | Path, force: bool = False) -> Path:
    """Write the adapter of `run` for peft, to be loaded into the exported base model.

    Raise UsageError if the run has no low-rank adapter, trained other parameters too, or adapts projections that
    transformers stores in another form; raise RunError if the folder must not be overwritten. No files are left behind
    on failure.
    """
    config = run.recipe.train.adapter
    if not isinstance(config, Lora.Config) or not (run.folder / ADAPTER).is_file():
        raise UsageError(f"{run.folder}: has no low-rank adapter; train with train.adapter: lora")
    if config.also:
        raise UsageError(
            f"{run.folder}: also trained parameters outside its adapter ({', '.join(config.also)}); export it merged"
        )
    family_config, _ = matching_family(run.blueprint, imported_as(run), ids_of(run))
    if family_config is None:
        raise UsageError(
            f"{run.folder}: peft requires a transformers class, and none can express this model; export it merged"
        )
    check(RunFolder(run.folder), [ADAPTER])
    pairs, _ = read_tensors(run.folder / ADAPTER)
    names = [name.removesuffix(".up") for name in pairs if name.endswith(".up")]
    places = _places(run, family_config, names)
    goal = target_folder(run.outside(target), "adapter", (CONFIG, WEIGHTS), force)
    with whole_folder(goal) as folder:
        tensors = {}
        for name, (path, rows) in places.items():
            tensors[f"base_model.model.{path}.lora_A.weight"] = pairs[f"{name}.down"]
            tensors[f"base_model.model.{path}.lora_B.weight"] = pairs[f"{name}.up"][rows]
        save_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
        write_json(folder / CONFIG, _config(config, family_config, [path for path, _ in places.values()]))
    return goal.path


def _config(config: Lora.Config, family_config: FamilyConfig, paths: list[str]) -> dict[str, object]:
    task = next((word for ending, word in TASKS.items() if family_config.head_class.endswith(ending)), None)
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": None,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": paths,
        "bias": "none",
        "inference_mode": True,
    }


def _places(run: Run, family_config: FamilyConfig, names: list[str]) -> Mapping[str, tuple[str, Tensor]]:
    """Return the module name in transformers for each projection, and the order of the projection's rows in it.

    Both are found by converting weights whose rows are filled with their own numbers. Raise UsageError if the
    conversion to transformers joins, splits or transposes a projection.
    """
    own, _ = own_tensors(run.model)
    marks = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in own.items()}
    begins, number = {}, 1
    for name in names:
        mark = marks[f"{name}.weight"]
        begins[name] = number
        mark += torch.arange(number, number + len(mark))[:, None]
        number += len(mark)
    places = {}
    for path, mark in to_checkpoint(family_config.family, marks, run.blueprint).items():
        rows = mark[:, :1].long().flatten() if mark.dim() == 2 else torch.zeros(0)
        for name, begin in begins.items():
            size = len(own[f"{name}.weight"])
            if sorted(rows.tolist()) == [*range(begin, begin + size)] and bool((mark == mark[:, :1]).all()):
                places[name] = (path.removesuffix(".weight"), rows - begin)
    missing = [name for name in names if name not in places]
    if missing:
        text = f"'{family_config.family.part_name}' has no separate projection for {', '.join(missing[:3])}"
        raise UsageError(f"{run.folder}: {text}; export the run merged, with --to huggingface")
    return places
