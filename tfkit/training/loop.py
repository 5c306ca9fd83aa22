"""The training loop: steps, validations and checkpoints until the work is done or somebody stops it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch

from tfkit.core.errors import TfkitError
from tfkit.recipe.sections import Mean
from tfkit.training import checkpoint
from tfkit.training.average import mean
from tfkit.training.checkpoint import Checkpoints, Progress
from tfkit.training.folder import CHECKPOINTS, METRICS, WEIGHTS, RunFolder
from tfkit.training.interrupt import Interrupts
from tfkit.training.metrics_log import MetricsLog
from tfkit.training.progress import Meter, Reporter
from tfkit.training.setup import Task
from tfkit.training.step import Places, accumulate, scale_gradients
from tfkit.training.validation import mean_loss
from tfkit.training.weights import Weights


class NotFinite(TfkitError):
    """The loss or its gradient is no number any more; nothing of that step was kept."""


class Trainer:
    """Trains `task.model` within a run's folder. `beside` is said behind each validation loss (a baseline)."""

    def __init__(self, task: Task, folder: RunFolder, reporter: Reporter, beside: str = "") -> None:
        self.task, self.folder, self.reporter, self.beside = task, folder, reporter, beside
        self.model, self.settings = task.model, task.settings
        self.schedule = self.settings.schedule.build()
        self.optimizer: torch.optim.Optimizer = self.settings.optimizer.build().make(task.trained, self._lr(1))
        self.trained = [parameter for parameter in task.trained.parameters() if parameter.requires_grad]
        keep = self.settings.keep
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, keep.mean if isinstance(keep, Mean) else 1)
        self.progress = Progress(keeps_best=keep == "best")

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint; more steps or more patience than then make a finished run unfinished."""
        keeps_best = self.progress.keeps_best
        self.progress = checkpoint.restore(path, self.model, self.optimizer, self.task.objective.module)
        if keeps_best and not self.progress.keeps_best:  # the best weights so far were not kept
            self.progress.best = None
        self.progress.keeps_best = keeps_best
        self.progress.finished = self._finished()

    def run(self) -> bool:
        """Train to the end; gives False when a signal stopped it before, with a checkpoint saved."""
        progress = self.progress
        order = self.task.train.order(progress.epoch, progress.batch)
        places = iter(order)
        metrics = MetricsLog(self.folder / METRICS, progress.step)
        meter = Meter(self.reporter, progress.step, self.settings.steps)
        self.model.train()
        try:
            with Interrupts() as interrupts:
                while not progress.finished and not interrupts.asked:
                    record = self._step(places, meter)
                    progress.epoch, progress.batch = order.state
                    if self._due(self.settings.evaluate_every):
                        record |= self._validate()
                    metrics.write(record)
                    progress.finished = self._finished()
                    if progress.finished or interrupts.asked or self._due(self.settings.checkpoint_every):
                        self.checkpoints.save(self.model, self.optimizer, progress, self.task.objective.module)
                self._publish()
        finally:
            metrics.close()
        return bool(progress.finished)

    def _step(self, places: Places, meter: Meter) -> dict[str, Any]:
        """One optimizer step; gives what metrics.jsonl says of it."""
        began, settings, progress = time.perf_counter(), self.settings, self.progress
        lr = self._lr(progress.step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        sums = accumulate(self.model, self.task.train, places, settings.accumulate, settings.precision)
        norm = scale_gradients(self.trained, sums.factor, settings.clip_norm)
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            raise NotFinite(self._not_finite(f"the loss is {sums.loss} and the norm of its gradient {norm}", lr))
        self.optimizer.step()
        progress.step += 1
        progress.tokens += sums.targets
        rate = meter.step(progress.step, sums.loss, sums.targets, time.perf_counter() - began)
        record = {"step": progress.step, "tokens": progress.tokens, "loss": sums.loss, "learning_rate": lr}
        return record | {"gradient_norm": norm, "tokens_per_second": round(rate, 1)}

    def _validate(self) -> dict[str, float]:
        """Measure the validation loss, and keep the weights if it is the best so far."""
        if self.task.valid is None:
            return {}
        progress = self.progress
        loss = mean_loss(self.model, self.task.valid, self.settings.precision)
        if not math.isfinite(loss):
            raise NotFinite(self._not_finite(f"the validation loss is {loss}", self._lr(progress.step)))
        better = progress.best is None or loss < progress.best
        if better:
            progress.best, progress.best_step, progress.stale = loss, progress.step, 0
            if progress.keeps_best:
                Weights.of(self.model).save(self.folder / WEIGHTS)
        else:
            progress.stale += 1
        how = "best so far" if better else f"best: {progress.best:.4f} at step {progress.best_step:,}"
        self.reporter.say(f"step {progress.step:,}: valid loss {loss:.4f}{self.beside}, {how}")
        return {"valid.loss": loss}

    def _publish(self) -> None:
        """Write the weights that the run keeps."""
        if isinstance(self.settings.keep, Mean):
            paths = self.checkpoints.all()
            if paths:
                mean(path / WEIGHTS for path in paths).save(self.folder / WEIGHTS)
        elif not self.progress.keeps_best or self.progress.best is None or not (self.folder / WEIGHTS).exists():
            Weights.of(self.model).save(self.folder / WEIGHTS)

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step >= self.settings.steps

    def _finished(self) -> str:
        """Why nothing is left to do, empty while something is."""
        if self.progress.step >= self.settings.steps:
            return "steps"
        patience = self.settings.patience
        return "patience" if patience is not None and self.progress.stale >= patience else ""

    def _lr(self, step: int) -> float:
        rate: float = self.schedule.lr(step, self.settings.steps, self.model.blueprint.last.d_model)
        return rate

    def _not_finite(self, what: str, lr: float) -> str:
        settings, last = self.settings, self.checkpoints.last()
        tries = [f"a lower learning rate (it is {lr:g})", "a longer warmup"]
        tries += [] if settings.clip_norm is not None else ["train.clip_norm: 1"]
        tries += [] if settings.precision == "float32" else ["train.precision: float32"]
        kept = "" if last is None else f" --resume goes on from step {int(last.name[5:]):,}."
        step = self.progress.step + 1
        return f"step {step:,}: {what}; training stopped, nothing of this step is saved. Try {', '.join(tries)}.{kept}"
