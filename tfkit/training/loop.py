"""The training loop: steps, validations and checkpoints."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tfkit.core.blame import compiling
from tfkit.core.errors import TfkitError
from tfkit.core.machine import is_out_of_memory
from tfkit.core.options import seconds_of
from tfkit.core.output import some
from tfkit.models import build_model
from tfkit.recipe.settings.sections import Mean
from tfkit.runs import checkpoint
from tfkit.runs.checkpoint import Checkpoints, Finished, Progress, Snapshot, seeded, step_of
from tfkit.runs.folder import CHECKPOINTS, ENVIRONMENT, METRICS, RunFolder
from tfkit.runs.history import HistoryFile, MetricsLog
from tfkit.runs.weights import Weights, exchange, gathered, is_part, local, not_finite
from tfkit.training.adapter import recompute_layers
from tfkit.training.callback import Callbacks, Training
from tfkit.training.division import Division, check_division, divided
from tfkit.training.feed import Ahead
from tfkit.training.optimizer import regroup, set_rate
from tfkit.training.planning import check_fits, explained
from tfkit.training.processes import Interrupts, outliving, team
from tfkit.training.progress import ProgressMeter, Reporter
from tfkit.training.publish import CheckpointWriter, Publisher, save_weights
from tfkit.training.scoring import ValidationScores, mean_loss, total_loss
from tfkit.training.setup import Task
from tfkit.training.step import accumulate, check_compile, compiled, computing, scale_gradients

Measure = Callable[[Task], ValidationScores]
SKIPS = 50  # training stops after this many consecutive steps without an update


class NotFinite(TfkitError):
    """Loss, gradient or weights that are not finite."""


class Trainer:
    """Training loop for `task.model` in a run folder. `beside` is a baseline printed after each validation loss.

    `measure` computes the metrics and samples of `train.validate`. Only process 0 writes files.
    """

    measure: Measure | None = None
    division: Division
    skips = 0  # consecutive steps without an update

    def __init__(
        self, task: Task, folder: RunFolder, reporter: Reporter, beside: str = "", callbacks: Sequence[object] = ()
    ) -> None:
        self.task, self.folder, self.reporter, self.beside = task, folder, reporter, beside
        self.model, self.settings = task.model, task.settings
        self.team = team()
        check_division(task, self.team)
        recompute_layers(task.recipe, task.trained)
        check_compile(task)
        check_fits(task, self.team.size)
        self.schedule = self.settings.schedule.build()
        self.optimizer: torch.optim.Optimizer = self.settings.optimizer.build().make(task.trained, self._lr(1))
        for line in regroup(self.optimizer, self.model, self.settings):
            reporter.say(line)
        self.trained = [parameter for parameter in task.trained.parameters() if parameter.requires_grad]
        keep = self.settings.keep
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, keep.mean if isinstance(keep, Mean) else 1)
        self.writer = CheckpointWriter(self.checkpoints, self._reached)
        self.publisher = Publisher(task, folder, self.checkpoints, reporter, beside)
        self.training = Training(task.recipe, task.model, task.trained, folder.path, task.steps, Progress(), reporter)
        self.callbacks = Callbacks(self.training, callbacks, self.team.leads)
        self.progress = self.training.progress = Progress(
            keeps_best=keep == "best", best_by=self.settings.validate.best, averaged=self.callbacks.averages
        )
        count = sum(parameter.numel() for parameter in self.model.parameters())
        self.history = HistoryFile(task.recipe, folder, task.train.device, count)
        limit = self.settings.max_time
        self.deadline = math.inf if limit is None else time.monotonic() + seconds_of(limit)

    def restore(self, path: Path) -> None:
        """Resume from a checkpoint. A finished run continues if steps or patience were raised."""
        before = self.progress
        self.progress = checkpoint.restore(path, self.model, self.optimizer, self.task.beside)
        self.training.progress = progress = self.progress
        self.callbacks.load(checkpoint.callback_state(path))
        self.checkpoints.go_on_from(path, self.reporter.say)
        others = (before.best_by, before.averaged) != (progress.best_by, progress.averaged)
        if others or (before.keeps_best and not progress.keeps_best):
            progress.best = None  # the best weights were not saved, or were selected by another metric
        progress.keeps_best, progress.best_by = before.keeps_best, before.best_by
        progress.averaged = before.averaged
        progress.finished = self._finished() or self._stopped_before(progress.finished)

    def run(self) -> bool:
        """Train to the end. On a signal or at train.max_time, save a checkpoint and return False."""
        progress, self.division = self.progress, self._divided()
        metrics = MetricsLog(self.folder / METRICS, progress.step) if self.team.leads else None
        threads = torch.get_num_threads() if self.task.train.device.type == "cpu" else 1
        meter = ProgressMeter(self.reporter, progress.step, self.task.steps, threads)
        self.model.train()
        try:
            self.callbacks.tell("start")
            ahead = Ahead(self.task.train, progress.epoch, progress.batch)
            with Interrupts() as interrupts, outliving(interrupts), ahead as batches:
                stopping = bool(progress.finished)
                while not stopping:
                    record = self._fitting_step(batches, meter)
                    progress.epoch, progress.batch = batches.state
                    self.callbacks.tell("step", record)
                    if self._due(self.settings.evaluate_every):
                        with self._published(), self.division.evaluating():
                            scores = self._validate()
                        record |= scores
                        self.callbacks.tell("validation", scores)
                    progress.finished = self._finished()
                    stopping = self.team.any(bool(progress.finished) or interrupts.asked or self.is_late)
                    saving = stopping or self._due(self.settings.checkpoint_every)
                    if saving:
                        self._check_weights()
                    if stopping:
                        with self.division.evaluating():
                            self._check_loss()
                    if metrics is not None:
                        metrics.write(record)
                    if saving:
                        self._save_later()
                    self.writer.poll()
                self.writer.wait()
                with self._published():
                    self.publisher.task = self._whole(self.task.train.device)
                    if self.team.leads:
                        self.publisher.publish(progress)
        finally:
            self.writer.close()
            if metrics is not None:
                metrics.close()
            self.callbacks.end()
        return bool(progress.finished)

    def _divided(self) -> Division:
        """Divide batches over the processes and, with `train.parallel.shard`, weights and optimizer state too."""
        task, before = self.task, dict(self.task.trained.named_parameters())
        compute = computing(compiled(task), task.train, self.settings.precision, task.distillation)
        division = divided(task, compute, self.team)
        exchange(self.optimizer, before, task.trained)
        self.trained = [parameter for parameter in task.trained.parameters() if parameter.requires_grad]
        return division

    def _whole(self, device: torch.device | str = "cpu") -> Task:
        """Return the task, in process 0 with a gathered copy of a sharded model. All processes must call this."""
        if not any(map(is_part, self.model.parameters())):
            return self.task
        weights = Weights.of(self.model)
        tensors = gathered(weights.tensors, self.team.leads)
        if not self.team.leads:
            return self.task
        model = build_model(self.model.blueprint)
        model.load_state_dict(replace(weights, tensors=tensors).by_name())
        return replace(self.task, model=model.to(device))

    @contextlib.contextmanager
    def _published(self) -> Iterator[None]:
        """Use the weights to evaluate and publish within the block: averaged by a callback, with the adapter merged."""
        adaptation = self.task.adaptation
        with self.callbacks.averaged(), contextlib.nullcontext() if adaptation is None else adaptation.merged():
            yield

    def save(self) -> Path:
        return self.checkpoints.write(self._snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot.of(self.model, self.optimizer, self.progress, self.task.beside, self.callbacks.state())

    def _save_later(self) -> None:
        """Gather a checkpoint from all processes. Process 0 writes it while training continues."""
        snapshot = self._snapshot().whole(self.team.leads)
        if self.team.leads:
            self.writer.write(snapshot)

    def _reached(self, snapshot: Snapshot, path: Path) -> None:
        """Report a complete checkpoint to callbacks and history. Training may already be some steps ahead."""
        self.callbacks.tell("checkpoint", path)
        self.history.reached(Progress.model_validate(snapshot.state["progress"]))

    def _fitting_step(self, batches: Ahead, meter: ProgressMeter) -> dict[str, float]:
        """Take one optimizer step. Raise OutOfMemory if an allocation fails."""
        try:
            with batches.working():
                return self._step(batches, meter)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # leaving the except block has released the tensors of the failed step
        self.optimizer.zero_grad(set_to_none=True)
        self.writer.wait()
        last = self.checkpoints.last()
        step = self.progress.step + 1
        raise explained(self.task.train.device, step, None if last is None else step_of(last))

    def _step(self, batches: Ahead, meter: ProgressMeter) -> dict[str, float]:
        """Take one optimizer step and return its record for metrics.jsonl."""
        began, settings, progress = time.perf_counter(), self.settings, self.progress
        step = progress.step + 1
        lr = self._lr(step)
        set_rate(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        with compiling("train.compile"):
            sums = accumulate(self.division, self.task.train, batches, settings.accumulate, self.trained)
        if step == 1 and self.task.adaptation is not None:
            self.task.adaptation.check_used()
        norm = scale_gradients(self.trained, sums, settings.clip_norm)
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            self._skip(step, f"the loss is {sums.loss} and the gradient norm {norm}")
        else:
            self.skips = 0
            self.optimizer.step()
        progress.step = step
        progress.tokens += sums.read
        progress.targets += sums.targets
        seconds = time.perf_counter() - began
        meter.step(step, sums.loss, sums.read, sums.targets, seconds)
        skipped = self.skips > 0
        return {
            "step": step,
            "tokens": progress.tokens,
            "targets": progress.targets,
            **({"skipped": progress.skipped} if skipped else {"loss": sums.loss}),
            "learning_rate": lr,
            **({} if skipped else {"gradient_norm": norm}),
            "tokens_per_second": round(sums.read / seconds, 1),
            "targets_per_second": round(sums.targets / seconds, 1),
            "waiting": round(batches.waiting() / seconds, 4),
        }

    def _validate(self) -> dict[str, float]:
        """Compute the validation loss and metrics. Save the weights if they are the best so far."""
        if self.task.valid is None:
            return {}
        progress = self.progress
        loss = mean_loss(self.model, self.task.valid, self.settings.precision, self.team)
        if not math.isfinite(loss):
            raise self._not_finite(progress.step, f"the validation loss is {loss}")
        self._check_weights()
        measured = self._measured()
        scores = {"loss": loss, **measured.scores}
        value = scores[progress.best_by]
        sign = 1 if self.settings.validate.higher_is_better else -1
        better = progress.best is None or sign * value > sign * progress.best
        if better:
            progress.best, progress.best_step, progress.stale = value, progress.step, 0
            progress.scores = scores
            if progress.keeps_best:
                task = self._whole()
                if self.team.leads:
                    save_weights(task, self.folder)
        else:
            progress.stale += 1
        how = "best so far" if better else f"best: {progress.best:.4f} at step {progress.best_step:,}"
        also = "".join(f", {name} {score:.4g}" for name, score in measured.scores.items())
        line = f"step {progress.step:,}: valid loss {loss:.4f}{self.beside}{also}, {how}"
        self.reporter.say(line, step=progress.step, scores=scores)
        for sample in measured.samples:
            self.reporter.say(f"  {sample.line()}")
        return {f"valid.{name}": score for name, score in scores.items()}

    def _measured(self) -> ValidationScores:
        """Compute metrics and samples in process 0, the only one that has `measure`, with an RNG state of their own."""
        asked = self.settings.validate
        if not (asked.metrics or asked.samples):
            return ValidationScores()
        task = self._whole(self.task.train.device)
        with seeded(self.settings.seed):
            return self.team.shared(ValidationScores if self.measure is None else partial(self.measure, task))

    def _check_weights(self) -> None:
        """Raise NotFinite if weights contain NaN or infinite values."""
        tensors = {name: local(tensor) for name, tensor in Weights.of(self.task.trained).tensors.items()}
        found = set(not_finite(tensors))
        wrong = self.team.gathered(torch.tensor([name in found for name in tensors])).any(0)
        names = [name for name, is_wrong in zip(tensors, wrong.tolist(), strict=True) if is_wrong]
        if names:
            raise self._not_finite(self.progress.step, f"{some(names)} became NaN or infinite")

    def _check_loss(self) -> None:
        """Raise NotFinite if the loss after the last step is not finite. Skip this if the step was just validated."""
        if self.task.valid is not None and self._due(self.settings.evaluate_every):
            return
        nats, _ = total_loss(self.model, self.task.valid or self.task.train, self.settings.precision, batches=1)
        if not math.isfinite(nats):
            raise self._not_finite(self.progress.step, f"the loss after this step is {nats}")

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step >= self.task.steps

    def _finished(self) -> Finished:
        """Return the reason why training is complete, or ""."""
        if self.progress.step >= self.task.steps:
            return "steps"
        patience = self.settings.patience
        if patience is not None and self.progress.stale >= patience:
            return "patience"
        return "callback" if self.training.stopped else ""

    def _stopped_before(self, finished: Finished) -> Finished:
        """Return "callback" if a callback stopped the run but its end was not recorded, else ""."""
        known = self.folder.known if (self.folder / ENVIRONMENT).is_file() else {}
        return "callback" if finished == "callback" and "finished" not in known else ""

    def _lr(self, step: int) -> float:
        rate: float = self.schedule.lr(step, self.task.steps, self.model.blueprint.last.d_model)
        return rate

    @property
    def is_late(self) -> bool:
        """True if train.max_time has passed. Only process 0 checks the time."""
        return self.team.leads and time.monotonic() >= self.deadline

    def _skip(self, step: int, what: str) -> None:
        """Count and report a step without an update. Raise NotFinite after SKIPS, or if train.not_finite is stop."""
        self.skips += 1
        if self.settings.not_finite == "stop" or self.skips == SKIPS:
            raise self._not_finite(step, f"{what}, {SKIPS} steps in a row" if self.skips == SKIPS else what)
        self.progress.skipped += 1
        self.reporter.say(f"step {step:,}: {what}; the update is skipped ({self.progress.skipped:,} so far)")

    def _not_finite(self, step: int, what: str) -> NotFinite:
        """Record the divergence, and return an error with suggestions."""
        self.writer.wait()
        settings, last = self.settings, self.checkpoints.last()
        tries = [f"a lower learning rate (now {self._lr(step):g})", "a longer warmup"]
        tries += [] if settings.clip_norm is not None else ["train.clip_norm: 1"]
        tries += [] if settings.precision == "float32" else ["train.precision: float32"]
        kept = "" if last is None else f" --resume continues from step {step_of(last):,}."
        self.history.diverged(step)
        stopped = "training stopped without saving this step"
        return NotFinite(f"step {step:,}: {what}; {stopped}. Try {', '.join(tries)}.{kept}")
