"""Final weights of a run: the best, the last, or a mean over checkpoints."""

from __future__ import annotations

from typing import Any

from tfkit.recipe.settings.sections import Mean
from tfkit.storage.checksums import write_json
from tfkit.storage.files import read_json
from tfkit.training.average import mean
from tfkit.training.checkpoint import Checkpoints, Progress, damage
from tfkit.training.folder import ADAPTER, ENVIRONMENT, WEIGHTS, RunFolder
from tfkit.training.progress import Reporter
from tfkit.training.setup import Task
from tfkit.training.validation import mean_loss
from tfkit.training.weights import Weights, save_tensors

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
