"""Checkpoints: the state for exact resumption, RNG included, stored as safetensors and JSON without pickle.

A checkpoint is a folder, such as checkpoints/step-00000500/, with model.safetensors, optimizer.safetensors, state.json
and their checksums in SHA256SUMS. The newest two are complete, in case one is damaged. Older checkpoints are kept for
averaging and hold only weights.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from tfkit.core.errors import RunError, with_article
from tfkit.runs.folder import WEIGHTS
from tfkit.runs.weights import Weights, gathered, load_weights, read_tensors
from tfkit.storage import checksums
from tfkit.storage.files import damaged_name, read_json, sync, temporary, temporary_for, write_json


def capture() -> dict[str, Any]:
    """Capture the RNG states of Python, numpy and torch (with CUDA) as JSON-serializable data."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    name, keys, place, has_gauss, cached = legacy
    cuda: list[Tensor] = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, keys.tolist(), int(place), int(has_gauss), float(cached)],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in cuda],
    }


def restore_state(state: dict[str, Any]) -> None:
    """Restore all RNG states. Skip CUDA states if the number of GPUs differs."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_tensor(text) for text in state["cuda"]])


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all RNGs within the block and restore their states afterwards."""
    before = capture()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        restore_state(before)


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


OPTIMIZER = "optimizer.safetensors"
BESIDE = "beside.safetensors"  # modules trained besides the model, such as the objective's or an adapter
CALLBACKS = "callbacks.safetensors"  # state of callbacks
STATE = "state.json"
VERSION = 1
WHOLE = 2  # number of newest checkpoints that stay complete
NEEDED = (WEIGHTS, OPTIMIZER, STATE)
MORE = (BESIDE, CALLBACKS)  # optional files
FILES = (*NEEDED, *MORE, checksums.SUMS)  # all files that a checkpoint may contain
# raised by malformed data
ODD = (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError)
UNFINISHED = re.compile(r"\.step-\d{8,}(\.[0-9a-f]{16})?\.tmp")  # name of a checkpoint while it is being written

_FOLDER = re.compile(r"step-(\d{8,})")
Count = Annotated[int, Field(ge=0)]
Finished = Literal["", "steps", "patience", "callback"]


class Progress(BaseModel):
    """Progress of a run."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: Count = 0
    tokens: Count = 0  # tokens read, without padding
    targets: Count = 0  # tokens included in the loss
    epoch: Count = 0  # epoch of the next batch
    batch: Count = 0  # index of the next batch in its epoch
    best: float | None = None  # loss of the best validation, or the metric named by `best_by`
    best_by: str = "loss"
    best_step: Count = 0
    scores: dict[str, float] = Field(default_factory=dict)  # all metrics of the best validation
    stale: Count = 0  # validations since the best one
    skipped: Count = 0  # steps without an update because the loss or gradient was not finite
    keeps_best: bool = True  # model.safetensors of the run holds the best weights
    averaged: bool = False  # validation uses weights from a callback, such as a moving average
    finished: Finished = ""  # reason why training ended, or ""


class Checkpoints:
    """Checkpoints of a run. The newest `keep` are retained, at least two."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder = folder
        self.keep = max(keep, WHOLE)

    def all(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        paths = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted((path for path in paths if _FOLDER.fullmatch(path.name)), key=step_of)

    def last(self) -> Path | None:
        return next(reversed(self.all()), None)

    def trained(self, most: int) -> list[Path]:
        """Return up to `most` of the newest checkpoints, excluding step 0."""
        return [path for path in self.all() if step_of(path)][-most:]

    def sound(self, say: Callable[[str], None]) -> Path | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints.

        Report damage in newer checkpoints. If all are damaged, raise RunError listing the damaged files.
        """
        problems: list[str] = []
        for checkpoint in reversed(self.all()):
            if not _is_whole(checkpoint):
                continue
            damages = damage(checkpoint)
            if not damages:
                for problem in problems:
                    say(problem)
                return checkpoint
            problems += damages
        if problems:
            nothing = f"{self.folder}: no undamaged checkpoint is left, so this run cannot be resumed"
            raise RunError("\n".join([*problems, nothing]))
        return None

    def go_on_from(self, checkpoint: Path, say: Callable[[str], None]) -> None:
        """Set aside damaged newer checkpoints, because resumed training will write checkpoints with the same names."""
        for newer in self.all():
            if step_of(newer) <= step_of(checkpoint):
                continue
            before = newer.with_name(f"{newer.name}.damaged")
            try:
                if before.is_dir() and is_removable(before):
                    _remove(before)
                aside = damaged_name(newer)
                os.replace(newer, aside)
            except OSError as error:
                raise RunError(f"{newer}: cannot be renamed: {error.strerror or error}") from None
            say(f"{newer}: set aside as {aside.name}; {checkpoint.name} is used instead")

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, beside: nn.Module | None = None
    ) -> Path:
        """Write a checkpoint atomically, and remove expired checkpoints."""
        return self.write(Snapshot.of(model, optimizer, progress, beside))

    def write(self, snapshot: Snapshot) -> Path:
        """Write a snapshot as a checkpoint atomically, and remove expired checkpoints."""
        final = self.folder / f"step-{snapshot.step:08d}"
        beside = temporary(final)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.iterdir():  # of interrupted saves
                if UNFINISHED.fullmatch(left.name) and left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
            if final.exists():  # no step has been trained since it was written, so only the progress can differ
                checksums.write_json(final / STATE, {**_state(final), "progress": snapshot.state["progress"]})
                return final
            beside.mkdir()
            _write(beside, snapshot)
            os.replace(beside, final)
            sync(self.folder)
            self._thin()
        except OSError as error:
            raise RunError(f"{final}: the checkpoint cannot be written: {error.strerror or error}") from None
        return final

    def _thin(self) -> None:
        """Remove expired checkpoints, and reduce all but the newest to weights."""
        existing = [path for path in self.all() if is_removable(path)]
        for old in existing[: -self.keep]:
            _remove(old)
        for old in existing[-self.keep : -WHOLE]:
            with checksums.changing(old, OPTIMIZER, *MORE):
                for name in (OPTIMIZER, *MORE):
                    (old / name).unlink(missing_ok=True)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def damage(checkpoint: Path, names: Sequence[str] = NEEDED) -> list[str]:
    """Return one message per file that is missing, damaged or differs from its recorded hash."""
    if names == NEEDED:
        listed = checksums.trusted_sums(checkpoint)
        names = (*NEEDED, *(name for name in MORE if name in listed or (checkpoint / name).exists()))
    with ThreadPoolExecutor(len(names), "sha256") as pool:
        problems = pool.map(_problem, (checkpoint / name for name in names))
        return list(dict.fromkeys(problem for problem in problems if problem))  # a damaged manifest fails every file


def _problem(file: Path) -> str:
    try:
        if not file.is_file():
            return f"{file}: is missing"
        checksums.check(file.parent, file.name)
    except RunError as error:
        return str(error)
    return ""


def _is_whole(checkpoint: Path) -> bool:
    """True if training can resume from this checkpoint."""
    listed = checksums.trusted_sums(checkpoint)
    return OPTIMIZER in listed or (checkpoint / OPTIMIZER).exists() or not listed


def is_removable(checkpoint: Path) -> bool:
    """True if a folder contains only checkpoint files and may therefore be removed."""
    return not checkpoint.is_symlink() and all(
        path.is_file() and not path.is_symlink() and (temporary_for(path) or path.name) in FILES
        for path in checkpoint.iterdir()
    )


def _remove(checkpoint: Path) -> None:
    for path in checkpoint.iterdir():
        path.unlink(missing_ok=True)
    checkpoint.rmdir()


@dataclass(frozen=True)
class Snapshot:
    """Contents of a checkpoint: the weights of each file, and the training state."""

    step: int
    files: Mapping[str, Weights]
    state: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        beside_model: nn.Module | None = None,
        kept: Mapping[str, Tensor] | None = None,
    ) -> Snapshot:
        """Take a snapshot that shares its tensors with the model and optimizer.

        `beside_model` holds modules trained besides the model, and `kept` the state of callbacks.
        """
        tensors: dict[str, Tensor] = {}
        plain = _take_apart(optimizer.state_dict(), "", tensors)
        saved = progress.model_dump()
        state = {"version": VERSION, "progress": saved, "optimizer": plain, "random": capture()}
        files = {WEIGHTS: Weights.of(model), OPTIMIZER: Weights(tensors, {})}
        files |= {} if beside_model is None else {BESIDE: Weights.of(beside_model)}
        return cls(progress.step, files | ({CALLBACKS: Weights(dict(kept), {})} if kept else {}), state)

    def copied(self, buffers: Snapshot | None = None) -> Snapshot:
        """Copy the tensors to CPU memory, reusing the tensors of `buffers` with the same shape and dtype."""
        into = {} if buffers is None else {name: weights.tensors for name, weights in buffers.files.items()}
        return self._with(lambda name, tensors: _copies(tensors, into.get(name, {})))

    def whole(self, kept: bool) -> Snapshot:
        """Gather sharded tensors; all processes must call this. The result is empty unless `kept`."""
        return self._with(lambda _, tensors: gathered(tensors, kept))

    def _with(self, convert: Callable[[str, dict[str, Tensor]], dict[str, Tensor]]) -> Snapshot:
        files = {name: replace(one, tensors=convert(name, one.tensors)) for name, one in self.files.items()}
        return replace(self, files=files)


def _copies(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, reusing matching tensors of `into` to save allocations."""
    copies = {}
    for name, tensor in tensors.items():
        buffer = into.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
        copies[name] = buffer.copy_(tensor.detach())
    return copies


def _distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Clone tensors that share memory with an earlier tensor, because safetensors rejects them."""
    seen: set[int] = set()
    distinct = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        distinct[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return distinct


def _write(folder: Path, snapshot: Snapshot) -> None:
    for name, weights in snapshot.files.items():
        one = replace(weights, tensors=_distinct(weights.tensors)) if name == OPTIMIZER else weights
        one.save(folder / name)
    write_json(folder / STATE, snapshot.state)
    checksums.write(folder, checksums.hashes_of(folder, [*snapshot.files, STATE]))
    sync(folder)


def read_progress(checkpoint: Path) -> Progress:
    """Read the progress stored in a checkpoint. Raise RunError naming the file if it is damaged."""
    return _progress(checkpoint, _state(checkpoint))


def restore(
    checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, beside_model: nn.Module | None = None
) -> Progress:
    """Restore model, optimizer and RNG state from a checkpoint. Raise RunError naming the file if one is damaged."""
    state = _state(checkpoint)
    progress = _progress(checkpoint, state)
    load_weights(model, checkpoint / WEIGHTS)
    if beside_model is not None:
        load_weights(beside_model, checkpoint / BESIDE)
    tensors, _ = read_tensors(checkpoint / OPTIMIZER)
    try:
        optimizer.load_state_dict(_put_together(state.get("optimizer"), tensors))
    except ODD as error:
        raise RunError(f"{checkpoint / OPTIMIZER}: does not fit this optimizer: {error}") from None
    try:
        restore_state(state["random"])
    except ODD as error:
        raise RunError(f"{checkpoint / STATE}: the RNG state cannot be restored: {error}") from None
    return progress


def callback_state(checkpoint: Path) -> dict[str, Tensor]:
    """Read the state of callbacks. Raise RunError naming the file if it is damaged."""
    file = checkpoint / CALLBACKS
    return read_tensors(file)[0] if file.exists() else {}


def _progress(checkpoint: Path, state: Mapping[str, Any]) -> Progress:
    """Parse the progress in a checkpoint's state. Raise RunError if it is invalid."""
    saved = state.get("progress")
    if isinstance(saved, dict) and "targets" not in saved:  # in older versions, `tokens` counted the targets
        saved = {**saved, "targets": saved.get("tokens")}
    try:
        progress = Progress.model_validate(saved)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("progress", *first["loc"])))
        raise RunError(f"{checkpoint / STATE}: {place}: {first['msg']}, got {first['input']!r:.80}") from None
    if progress.step != step_of(checkpoint):
        raise RunError(
            f"{checkpoint / STATE}: progress.step is {progress.step:,}, but the folder is named {checkpoint.name}"
        )
    return progress


def _state(checkpoint: Path) -> Mapping[str, Any]:
    file = checkpoint / STATE
    state = read_json(file)
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise RunError(f"{file}: not a checkpoint that this version of tfkit can read (format version {VERSION})")
    return state


def _take_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Convert `value` to JSON. Tensors are moved to `tensors` and replaced by references."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, dict):
        entries = ((key, _take_apart(entry, f"{path}.{key}".lstrip("."), tensors)) for key, entry in value.items())
        return {"items": [list(entry) for entry in entries]}
    if isinstance(value, (list, tuple)):
        parts = [_take_apart(entry, f"{path}.{index}".lstrip("."), tensors) for index, entry in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RunError(
        f"the optimizer's state {path} is {with_article(type(value).__name__)}, which a checkpoint cannot store"
    )


def _put_together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Invert `_take_apart`."""
    if isinstance(value, list):
        return [_put_together(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "tuple" in value:
        return tuple(_put_together(entry, tensors) for entry in value["tuple"])
    return {key: _put_together(entry, tensors) for key, entry in value["items"]}
