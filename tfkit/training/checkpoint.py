"""Checkpoints: everything that exact resumption needs, as safetensors and JSON; nothing is pickled.

A folder each: checkpoints/step-00000500/ with model.safetensors, optimizer.safetensors and state.json.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.errors import RunError
from tfkit.core.files import read_json, sync, write_json
from tfkit.training import random_state
from tfkit.training.folder import WEIGHTS
from tfkit.training.weights import Weights, load_weights, read_tensors, save_tensors

OPTIMIZER = "optimizer.safetensors"
BESIDE = "beside.safetensors"  # what the objective owns
STATE = "state.json"
VERSION = 1


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    tokens: int = 0  # targets that losses were taken on
    epoch: int = 0  # of the batch that comes next
    batch: int = 0
    best: float | None = None  # validation loss
    best_step: int = 0
    stale: int = 0  # validations since the best
    keeps_best: bool = True  # the run's model.safetensors holds the best weights
    finished: str = ""  # why nothing is left to do: "steps" or "patience"


class Checkpoints:
    """The checkpoints of a run; the last `keep` of them stay, all but the newest without their optimizer's state."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder = folder
        self.keep = keep

    def all(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted(path for path in found if re.fullmatch(r"step-\d{8,}", path.name))

    def last(self) -> Path | None:
        """The newest checkpoint, None when there is none."""
        return max(self.all(), default=None, key=lambda path: int(path.name[5:]))

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        beside_model: nn.Module | None = None,
    ) -> Path:
        """Write a checkpoint, whole or not at all, and remove those that are too old.

        `beside_model` is what the objective owns, which resuming needs and nobody else.
        """
        final = self.folder / f"step-{progress.step:08d}"
        beside = self.folder / f".{final.name}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(".*.tmp"):  # of a save that was cut off
                shutil.rmtree(left)
            if final.exists():  # resumed here and not gone on: only what is said about it can differ
                write_json(final / STATE, {**_state(final), "progress": asdict(progress)})
                return final
            beside.mkdir()
            _write(beside, model, optimizer, progress)
            if beside_model is not None:
                Weights.of(beside_model).save(beside / BESIDE)
            os.replace(beside, final)
            sync(self.folder)
            for old in self.all()[:-1]:
                for name in (OPTIMIZER, BESIDE):  # a mean needs weights only
                    (old / name).unlink(missing_ok=True)
            for old in self.all()[: -self.keep]:
                shutil.rmtree(old)
        except OSError as error:
            raise RunError(f"{final}: the checkpoint cannot be written: {error.strerror or error}") from None
        return final


def _write(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    Weights.of(model).save(folder / WEIGHTS)
    tensors: dict[str, Tensor] = {}
    plain = _take_apart(optimizer.state_dict(), "", tensors)
    save_tensors(folder / OPTIMIZER, tensors, {})
    state = {"version": VERSION, "progress": asdict(progress), "optimizer": plain, "random": random_state.capture()}
    write_json(folder / STATE, state)
    sync(folder)


def read_progress(checkpoint: Path) -> Progress:
    """How far the run had come; raises RunError naming the file."""
    return Progress(**_state(checkpoint)["progress"])


def restore(
    checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, beside_model: nn.Module | None = None
) -> Progress:
    """Put model, optimizer and random generators into the state of `checkpoint`; raises RunError naming the file."""
    state = _state(checkpoint)
    load_weights(model, checkpoint / WEIGHTS)
    if beside_model is not None:
        load_weights(beside_model, checkpoint / BESIDE)
    tensors, _ = read_tensors(checkpoint / OPTIMIZER)
    try:
        optimizer.load_state_dict(_put_together(state["optimizer"], tensors))
    except (ValueError, KeyError) as error:
        raise RunError(f"{checkpoint / OPTIMIZER}: does not fit this optimizer: {error}") from None
    random_state.restore(state["random"])
    return Progress(**state["progress"])


def _state(checkpoint: Path) -> Mapping[str, Any]:
    file = checkpoint / STATE
    state = read_json(file)
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise RunError(f"{file}: is no checkpoint of this version of tfkit (version {VERSION})")
    return state


def _take_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON can hold it: its tensors go into `tensors`, a reference stands in their place."""
    if isinstance(value, Tensor):
        tensors[path] = value.clone()  # two entries may be one tensor
        return {"tensor": path}
    if isinstance(value, dict):
        entries = ((key, _take_apart(entry, f"{path}.{key}".lstrip("."), tensors)) for key, entry in value.items())
        return {"items": [list(entry) for entry in entries]}
    if isinstance(value, (list, tuple)):
        parts = [_take_apart(entry, f"{path}.{index}".lstrip("."), tensors) for index, entry in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RunError(f"the optimizer's state {path} is a {type(value).__name__}, which a checkpoint cannot hold")


def _put_together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The reverse of `_take_apart`."""
    if isinstance(value, list):
        return [_put_together(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(_put_together(entry, tensors) for entry in value["tuple"])
    return {key: _put_together(entry, tensors) for key, entry in value["items"]}
