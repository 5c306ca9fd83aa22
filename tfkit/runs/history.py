"""run.json, metrics.jsonl and environment.json: identity and history, steps, versions and hardware of a run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import IO, Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

import tfkit
from tfkit import __version__
from tfkit.core.errors import RunError, UsageError
from tfkit.core.machine import free_memory, machine, peak_memory, readable_bytes
from tfkit.core.options import check_device_name
from tfkit.functional.linear import rule_name
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import Recipe
from tfkit.runs.checkpoint import Progress
from tfkit.runs.folder import RUN, RunFolder
from tfkit.storage import checksums
from tfkit.storage.files import open_log, read_bytes, read_json, write_text

TRAINED_BYTES = 16  # per trained parameter: float32 weight, gradient and the two moments of Adam
FROZEN_BYTES = 4


def choose_device(name: str, key: str = "train.device") -> torch.device:
    """Return the device called `name`; `auto` prefers CUDA. Raise UsageError if it is unavailable.

    `key` names the option in messages.
    """
    try:
        check_device_name(name)
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from None
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"{key}: {name} is not available; torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Return a context manager for bfloat16 autocast, or a no-op for float32."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def describe(device: torch.device) -> str:
    """Describe the device with its GPU name or thread count."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"


def describe_products(device: torch.device, precision: str) -> str:
    """Describe the precision of matrix products; empty for float32 on a CPU."""
    if device.type == "cuda":
        tensor_float = torch.get_float32_matmul_precision() != "highest"
        return f", {precision}, TF32 {'on' if tensor_float else 'off'}"
    return "" if precision == "float32" else f", {precision}"


def check_memory(model: nn.Module, device: torch.device, parts: int = 1) -> None:
    """Raise UsageError if training `model` (on `meta`) needs more memory than is free, even without activations.

    `parts` is the number of processes over which the weights are divided.
    """
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    needed, free = (trained * TRAINED_BYTES + frozen * FROZEN_BYTES) // parts, free_memory(device)
    if free is not None and needed > free:
        divided = "" if parts == 1 else f"; divided over {parts} processes"
        raise UsageError(
            f"training {trained + frozen:,} parameters needs {readable_bytes(needed)} without activations "
            f"({TRAINED_BYTES} bytes each: weight, gradient, two moments{divided}), but {device} has "
            f"{readable_bytes(free)} free; use a smaller model or a machine with more memory"
        )


PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic")


def environment(seed: int, device: torch.device) -> dict[str, Any]:
    """Return the contents of a new environment.json. Its key "tfkit" identifies run folders."""
    return {
        **versions(),
        "device": describe(device),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str]:
    """Return the versions of tfkit, its dependencies and Python, a hash of tfkit's code, and the platform."""
    return {
        "tfkit": __version__,
        "code": _code(),
        **{name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def resumption(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the list of resumptions with a new entry: step, time, device and changed versions."""
    other = {name: now[name] for name in versions() if now[name] != before.get(name)}
    again = {"step": step, "started": now["started"], "device": now["device"], "threads": now["threads"], **other}
    resumed = before.get("resumed")
    return {"resumed": [*(resumed if isinstance(resumed, list) else []), again]}


@cache
def _code() -> str:
    """Return an abbreviated hash of tfkit's source, which distinguishes versions under development."""
    root, digest = Path(tfkit.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class MetricsLog:
    """Writer of metrics.jsonl."""

    def __init__(self, path: Path, step: int = 0) -> None:
        """Drop the lines after `step`, and open the file for appending. Raise RunError if it cannot be opened."""
        if path.exists():
            kept = [line for line in good_lines(read_bytes(path))[0] if step_in(line) <= step]
            write_text(path, "".join(line + "\n" for line in kept))
        self._file: IO[str] = open_log(path)

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def good_lines(text: bytes) -> tuple[list[str], int]:
    """Return the valid lines of metrics.jsonl and the number of invalid lines. Ignore a truncated last line."""
    *lines, last = text.split(b"\n")
    good = [line.decode("utf-8") for line in lines if _holds_step(line)]
    return good, len(lines) - len(good) + (last[:1] not in (b"", b"{"))


def step_in(line: str) -> int:
    """Return the step of a valid line."""
    return int(json.loads(line)["step"])


def _holds_step(line: bytes) -> bool:
    try:
        return type(json.loads(line.decode("utf-8"))["step"]) is int
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


FORMAT = 1
Count = Annotated[int, Field(ge=0, le=2**63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


class Part(BaseModel):
    """Base class of the records in run.json. Unknown keys are ignored, because later versions may add some."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Start(Part):
    """A start or resumption of training: first step, duration, machine and versions."""

    at: str
    step: Count
    seconds: Seconds = 0.0  # until the last checkpoint or the end
    device: str = ""
    threads: int = 0
    products: str = ""  # the rule for float32 products on a CPU
    machine: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    variants: list[str] = Field(default_factory=list)
    set: dict[str, Any] = Field(default_factory=dict)


class History(Part):
    """Contents of run.json.

    `set` maps dotted keys to overrides. `best` holds all scores of the best validation. `steps`, `tokens` (read),
    `targets` (predicted) and `seconds` (over all starts) are as of the last checkpoint. `diverged` is the step whose
    loss was not finite.
    """

    format: int = FORMAT
    recipe: str
    file: str | None = None
    variants: list[str] = Field(default_factory=list)
    set: dict[str, Any] = Field(default_factory=dict)
    seed: int
    parameters: Count = 0
    peak_memory: Count | None = None  # bytes on the training device
    steps: Count = 0
    tokens: Count = 0
    targets: Count = 0
    seconds: Seconds = 0.0
    best: dict[str, float] = Field(default_factory=dict)
    best_step: Count = 0
    finished: str = ""
    diverged: Count | None = None
    starts: list[Start] = Field(default_factory=list)


def read_history(folder: RunFolder) -> History | None:
    """Read run.json; return None for runs of older versions. Raise RunError if it is invalid."""
    file = folder / RUN
    if not file.is_file():
        return None
    try:
        return History.model_validate(read_json(file))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def other_products(history: History | None) -> Iterator[str]:
    """Yield a message if the last start of a run computed its products by another rule."""
    before = history.starts[-1].products if history is not None and history.starts else ""
    if before and before != rule_name():
        yield f"float32 products follow the rule {rule_name()} now, {before} before; results differ by rounding"


class HistoryFile:
    """Writer of run.json during training."""

    def __init__(self, recipe: Recipe, folder: RunFolder, device: torch.device, parameters: int) -> None:
        self.recipe, self.folder, self.device = recipe, folder, device
        is_shipped = recipe.file is None or recipe.file.resolve() in shipped_recipes().values()
        self.history = History(
            recipe=recipe.name,
            file=None if is_shipped else str(recipe.file),
            variants=list(recipe.variants),
            set=dict(recipe.changes),
            seed=recipe.train.seed,
            parameters=parameters,
        )

    def start(self, step: int, before: History | None = None) -> None:
        """Add a start and begin timing. `before` is the history of a resumed run."""
        self.history = before or self.history
        self._began = time.perf_counter()
        self.history.starts.append(
            Start(
                at=datetime.now().astimezone().isoformat(timespec="seconds"),
                step=step,
                device=str(self.device),
                threads=torch.get_num_threads(),
                products=rule_name(),
                machine=machine(),
                versions=versions(),
                variants=list(self.recipe.variants),
                set=dict(self.recipe.changes),
            )
        )

    def reached(self, progress: Progress) -> None:
        history = self.history
        history.steps, history.tokens, history.targets = progress.step, progress.tokens, progress.targets
        history.best, history.best_step = progress.scores, progress.best_step
        history.finished, history.diverged = progress.finished, None
        self.write()

    def diverged(self, step: int) -> None:
        """Record the step whose non-finite loss stopped training."""
        self.history.diverged = step
        self.write()

    def write(self, folder: RunFolder | None = None) -> None:
        """Write run.json with the elapsed time. Do nothing before `start`."""
        history = self.history
        if not history.starts:
            return
        history.peak_memory = max(filter(None, (history.peak_memory, peak_memory(self.device))), default=None)
        history.starts[-1].seconds = round(time.perf_counter() - self._began, 3)
        history.seconds = round(sum(start.seconds for start in history.starts), 3)
        checksums.write_json((folder or self.folder) / RUN, _plain(history.model_dump()))


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop empty values."""
    starts = [{key: value for key, value in one.items() if value not in ([], {})} for one in data["starts"]]
    return {key: value for key, value in data.items() if value not in (None, [], {}, "")} | {"starts": starts}
