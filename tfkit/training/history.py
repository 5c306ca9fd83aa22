"""run.json: the identity of a run (recipe, variants, overrides, seed) and its history."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tfkit.core.errors import RunError
from tfkit.core.machine import machine, peak_memory
from tfkit.functional.rule import rule_name
from tfkit.recipe.load import Recipe
from tfkit.recipe.shipped import shipped_recipes
from tfkit.storage import checksums
from tfkit.storage.files import read_json
from tfkit.training.checkpoint import Progress
from tfkit.training.environment import versions
from tfkit.training.folder import RUN, RunFolder

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
        """Update progress and save it."""
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
