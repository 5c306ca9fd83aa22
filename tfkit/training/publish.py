"""Final weights of a run (the best, the last, or a mean over checkpoints), and checkpoints written in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tfkit.core.machine import free_memory
from tfkit.recipe.settings.sections import Mean
from tfkit.runs.checkpoint import Checkpoints, Progress, Snapshot, damage
from tfkit.runs.folder import ADAPTER, ENVIRONMENT, WEIGHTS, RunFolder
from tfkit.runs.weights import Weights, save_tensors
from tfkit.storage.checksums import write_json
from tfkit.storage.files import read_json
from tfkit.training.progress import Reporter
from tfkit.training.scoring import mean_loss
from tfkit.training.setup import Task


def mean(files: Iterable[Path]) -> Weights:
    """Average floating-point weights in float64. Take other tensors from the last file."""
    total: dict[str, Tensor] = {}
    last: Weights | None = None
    count = 0
    for file in files:
        last, count = Weights.read(file), count + 1
        for name, tensor in last.tensors.items():
            if tensor.is_floating_point():
                total[name] = tensor.double() if count == 1 else total[name] + tensor.double()
    if last is None:
        raise ValueError("at least one weights file is required")
    averaged = {name: (tensor / count).to(last.tensors[name].dtype) for name, tensor in total.items()}
    return replace(last, tensors=last.tensors | averaged)


SPARE = 2  # a copy may use up to 1/SPARE of the free memory


class CheckpointWriter:
    """Writer of snapshots. `done` is called in the training thread with each complete checkpoint."""

    def __init__(self, checkpoints: Checkpoints, done: Callable[[Snapshot, Path], None]) -> None:
        self.checkpoints, self.done = checkpoints, done
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._copy: Snapshot | None = None  # its memory is reused for the next copy
        self._pending: tuple[Snapshot, Future[Path]] | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Write a copy of the snapshot in the background, or the snapshot itself at once if memory is short.

        Wait for the previous checkpoint first. Raise RunError if it could not be written.
        """
        self.wait()
        free, needed = (
            free_memory(),
            sum(one.nbytes for weights in snapshot.files.values() for one in weights.tensors.values()),
        )
        if self._copy is None and free is not None and needed > free // SPARE:
            self.done(snapshot, self.checkpoints.write(snapshot))
            return
        self._copy = copy = snapshot.copied(self._copy)
        self._pending = copy, self._pool.submit(self.checkpoints.write, copy)

    def poll(self) -> None:
        """Report the pending checkpoint if it is complete. Raise RunError if it could not be written."""
        if self._pending is not None and self._pending[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the pending checkpoint. Raise RunError if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.done(pending[0], pending[1].result())

    def close(self) -> None:
        """Wait for the thread to end, ignoring errors: `wait` has raised them, or another error has ended training."""
        self._pool.shutdown()


KEPT = "kept"  # key in environment.json


def save_weights(task: Task, folder: RunFolder) -> None:
    """Write the model's weights to the run folder, and those of the adapter if there is one."""
    Weights.of(task.model).save(folder / WEIGHTS)
    if task.adaptation is not None:
        save_tensors(folder / ADAPTER, task.adaptation.tensors(), {})


class Publisher:
    """Writer of the final model.safetensors. `beside` is a baseline printed after each validation loss."""

    def __init__(
        self, task: Task, folder: RunFolder, checkpoints: Checkpoints, reporter: Reporter, beside: str = ""
    ) -> None:
        self.task, self.folder, self.checkpoints = task, folder, checkpoints
        self.reporter, self.beside = reporter, beside

    def publish(self, progress: Progress) -> None:
        """Write the final weights selected by `train.keep`. Report it if the best weights are lost."""
        keep = self.task.settings.keep
        if isinstance(keep, Mean):
            self._note(self._publish_mean(keep.mean, progress))
            return
        self._note(None)
        file, has_best = self.folder / WEIGHTS, progress.keeps_best and progress.best is not None
        if has_best and file.exists():
            return
        save_weights(self.task, self.folder)
        if has_best and progress.best_step != progress.step:
            here, best = f"step {progress.step:,}", f"step {progress.best_step:,}"
            self.reporter.say(
                f"{file}: was missing and now holds the weights of {here}; the best weights ({best}) are lost"
            )

    def _publish_mean(self, most: int, progress: Progress) -> dict[str, Any] | None:
        """Write the mean of the newest checkpoints, skipping damaged ones. Return its scores at the end of training."""
        files = []
        for path in self.checkpoints.trained(most):
            problems = damage(path, [WEIGHTS])
            if problems:
                self.reporter.say(f"{'; '.join(problems)}; the mean omits {path.name}")
            else:
                files.append(path / WEIGHTS)
        if not files:
            return None
        weights = mean(files)
        weights.save(self.folder / WEIGHTS)
        model, valid = self.task.model, self.task.valid
        if not progress.finished or valid is None:
            return None
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(weights.by_name())
        try:
            loss = mean_loss(model, valid, self.task.settings.precision)
        finally:
            model.load_state_dict(own)
        return self._compared(loss, len(files), progress)

    def _compared(self, loss: float, count: int, progress: Progress) -> dict[str, Any]:
        """Report and return the loss of the mean of `count` checkpoints next to the best single step."""
        message = f"the mean of {count} checkpoints has validation loss {loss:.4f}{self.beside}"
        if progress.best is not None and progress.best_by == "loss":
            message += f"; step {progress.best_step:,} had {progress.best:.4f}"
            message += "" if loss <= progress.best else ": train.keep: best would have kept it"
        self.reporter.say(message)
        return {"mean": count, "valid.loss": loss, "best": progress.best, "best_step": progress.best_step}

    def _note(self, kept: dict[str, Any] | None) -> None:
        """Record the scores of the averaged weights in environment.json, or remove them."""
        file = self.folder / ENVIRONMENT
        known = read_json(file) if file.is_file() else {}
        if known.pop(KEPT, None) != kept:
            write_json(file, known | ({} if kept is None else {KEPT: kept}))
