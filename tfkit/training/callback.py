"""Callbacks: observers of the training loop that can log and stop it or change weights, and the calls of their hooks.

| type | choose it when |
|---|---|
| ema | you want to evaluate and publish a moving average of the weights |
| tensorboard | you view curves in TensorBoard |
| trackio | you track experiments with Trackio, locally or in a Space |
| wandb | you track experiments with Weights & Biases |
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.core.component import Component, Problem
from tfkit.core.errors import RunError, UsageError, optional
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.options import PositiveInt
from tfkit.core.output import some
from tfkit.core.registry import register
from tfkit.models import Model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.sections import Mean
from tfkit.runs.checkpoint import Progress
from tfkit.runs.folder import RunFolder
from tfkit.runs.history import read_history
from tfkit.runs.weights import local, part_of
from tfkit.training.progress import Reporter

Record = Mapping[str, float]  # a line of metrics.jsonl, or the scores of a validation
Tensors = Mapping[str, Tensor]


@dataclass
class Training:
    """A training run as seen by callbacks. `trained` holds all trainable modules, `steps` the total number of steps."""

    recipe: Recipe
    model: Model
    trained: nn.Module
    folder: Path
    steps: int
    progress: Progress
    reporter: Reporter
    stopped: bool = False

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.progress.step

    @property
    def id(self) -> str:
        """Identifier of the run: folder name and time of the first start. Resuming does not change it."""
        history = read_history(RunFolder(self.folder))
        at = "" if history is None or not history.starts else history.starts[0].at
        return "-".join(filter(None, (self.folder.name, "".join(filter(str.isdigit, at))[:14])))

    def log(self, message: str) -> None:
        """Print a line and write it to train.log."""
        self.reporter.say(message)

    def stop(self, reason: str) -> None:
        """Stop after this step. The run then ends as it would after its last step."""
        if not self.stopped:
            self.log(f"step {self.step:,}: stopped by a callback: {reason}")
        self.stopped = True


class Callback(Component):
    """Base class of callbacks. All hooks are optional.

    With `changes_weights`, `step` may change trainable weights in place. It is then called in every process, without
    gradients, and must change them alike in all: sharded weights are DTensors, whose operations act on whole weights.
    """

    changes_weights: bool = False  # True if `step` may change trainable weights in place

    class Config(RecipeConfig):
        """Options of all callbacks."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def ready(self) -> None:
        """Raise UsageError if a required library is missing. Called before anything is written."""

    def start(self, training: Training) -> None:
        """Prepare for the first step, after `load` if the run is resumed. Weights may be changed at step 0 only."""

    def step(self, training: Training, record: Record) -> None:
        """Observe a step, or change the weights. The record has no loss if the update was skipped."""

    def validation(self, training: Training, scores: Record) -> None:
        """Observe the scores of a validation (valid.loss, ...)."""

    def checkpoint(self, training: Training, path: Path) -> None:
        """Observe a complete checkpoint. Training may already be some steps ahead."""

    def end(self, training: Training) -> None:
        """Clean up after training has ended, stopped or failed."""

    def weights(self) -> Tensors | None:
        """Return the weights to evaluate and publish, by parameter name. Requires the capability `averages`."""
        return None

    def state(self) -> Tensors:
        """Return the tensors to save in checkpoints."""
        return {}

    def load(self, state: Tensors) -> None:
        """Restore tensors returned by `state`."""


@register("callback", "ema")
class Ema(Callback):
    """average = decay * average + (1 - decay) * weights, after each step.

    The average is evaluated and published in place of the weights. The decay at step t is at most (1 + t) / (10 + t),
    so that the initial weights are forgotten quickly.
    """

    capabilities = frozenset({"averages"})

    class Config(Callback.Config):
        decay: Annotated[float, Field(gt=0, lt=1)] = Field(0.999, description="fraction of the average kept per step")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.decay = config.decay
        self.average: dict[str, Tensor] = {}

    def start(self, training: Training) -> None:
        """Start from the current weights, unless an average was loaded."""
        trained = {name: value.detach() for name, value in training.trained.named_parameters() if value.requires_grad}
        loaded = self.average
        if loaded and {name: value.shape for name, value in loaded.items()} != {
            name: value.shape for name, value in trained.items()
        }:
            raise RunError(f"{training.folder}: the checkpoint's moving average (ema) does not fit this model")
        self.average = {
            name: part_of(loaded[name], value) if name in loaded else value.clone() for name, value in trained.items()
        }

    def step(self, training: Training, record: Record) -> None:
        decay = min(self.decay, (1 + training.step) / (10 + training.step))
        parameters = dict(training.trained.named_parameters())
        torch._foreach_lerp_(
            list(self.average.values()), [parameters[name].detach() for name in self.average], 1 - decay
        )

    def weights(self) -> Tensors:
        return self.average

    def state(self) -> Tensors:
        return self.average

    def load(self, state: Tensors) -> None:
        self.average = dict(state)


class Tracker(Callback):
    """Base class of callbacks that log the records of metrics.jsonl to a tracking library under the same names."""

    class Config(Callback.Config):
        every: PositiveInt = Field(1, description="log every n-th step; validations are always logged")

    config: Config
    library: ModuleType  # imported by `ready`

    def step(self, training: Training, record: Record) -> None:
        if training.step % self.config.every == 0:
            self.write(training.step, record)

    def validation(self, training: Training, scores: Record) -> None:
        self.write(training.step, scores)

    def write(self, step: int, record: Record) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no write")


@register("callback", "tensorboard")
class TensorBoard(Tracker):
    """Event files in the run folder, viewed with `tensorboard --logdir runs` (www.tensorflow.org/tensorboard)."""

    def ready(self) -> None:
        optional("tensorboard", "tensorboard", "the callback tensorboard needs")
        self.library = importlib.import_module("torch.utils.tensorboard")

    def start(self, training: Training) -> None:
        """Open the event file. Events after the step from which the run is resumed are purged."""
        folder = training.folder / "tensorboard"
        self.writer = self.library.SummaryWriter(str(folder), purge_step=training.step + 1)

    def write(self, step: int, record: Record) -> None:
        for name, value in record.items():
            if name != "step" and math.isfinite(value):
                self.writer.add_scalar(name.replace(".", "/", 1), value, step)

    def end(self, training: Training) -> None:
        self.writer.close()


# arguments of `init` that a recipe may set: none chooses the server, a file or a key
PASSED = frozenset({"entity", "group", "job_type", "mode", "name", "notes", "tags"})


class Experiments(Tracker):
    """Base class of trackers with wandb's interface: `init`, `log` and `finish`."""

    class Config(Tracker.Config):
        project: str = Field("tfkit", description="project that runs are logged to")
        options: dict[str, object] = Field(
            default_factory=dict, description=f"further arguments for the library's init: {', '.join(sorted(PASSED))}"
        )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            """Refuse other arguments. Runs that were trained with them still load."""
            for name in sorted(self.options.keys() - PASSED):
                yield Problem(f"options.{name}", f"unknown option; available: {', '.join(sorted(PASSED))}")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options = {name: value for name, value in config.options.items() if name in PASSED}

    def names(self, training: Training) -> dict[str, str]:
        """Return the arguments of `init` that identify the run, so that a resumed run continues its log."""
        return {"name": training.id}

    def start(self, training: Training) -> None:
        """Start or continue the tracked run, with the recipe as its configuration."""
        given = {"config": training.recipe.root.plain(), "resume": "allow", **self.names(training), **self.options}
        self.run = self.library.init(project=self.config.project, **given)

    def write(self, step: int, record: Record) -> None:
        self.run.log({name: value for name, value in record.items() if name != "step"}, step=step)

    def end(self, training: Training) -> None:
        self.run.finish()


@register("callback", "trackio")
class Trackio(Experiments):
    """Log to a local Trackio project, viewed with `trackio show` (huggingface.co/docs/trackio)."""

    def ready(self) -> None:
        self.library = optional("trackio", "trackio", "the callback trackio needs")


@register("callback", "wandb")
class Wandb(Experiments):
    """Log to a Weights & Biases project (docs.wandb.ai); `options: {mode: offline}` keeps the log on this machine."""

    def ready(self) -> None:
        self.library = optional("wandb", "wandb", "the callback wandb needs")

    def names(self, training: Training) -> dict[str, str]:
        return {"name": training.folder.name, "id": training.id, "dir": str(training.folder)}


HOOKS = ("ready", "start", "step", "validation", "checkpoint", "end", "weights", "state", "load")
EVENTS = HOOKS[1:6]
RULE = "only `step` may, or `start` of a new run, of a callback that declares changes_weights = True"


class Foreign(Callback):
    """Callback made from a function, called after each step, or from any object with some of the hooks."""

    def __init__(self, given: object) -> None:
        hooks = {name: getattr(given, name, None) for name in HOOKS}
        found = {name: hook for name, hook in hooks.items() if callable(hook)}
        if not found and callable(given):
            found = {"step": given}
        if not found or isinstance(given, (type, str)):
            what = f"{given.__name__} is a class; pass an instance" if isinstance(given, type) else f"got {given!r}"
            raise UsageError(
                f"callbacks: {what}. A callback is a function (training, record), called after each step, or an object "
                f"with some of the methods {', '.join(EVENTS)}; registered callbacks are listed in train.callbacks"
            )
        for name, hook in found.items():
            setattr(self, name, hook)
        self.name = "function" if found.get("step") is given else type(given).__name__
        self.averages = "weights" in found
        self.changes_weights = hasattr(given, "changes_weights") and given.changes_weights is True


class Callbacks:
    """The callbacks of a run: first those of the recipe, then those passed in Python.

    Callbacks that change weights come first, so that an average includes the changes. Processes other than the leading
    one (`leads`) keep only these and the callback whose averaged weights all processes evaluate.
    """

    def __init__(self, training: Training, given: Sequence[object] = (), leads: bool = True) -> None:
        self.training = training
        parts: list[Callback] = [config.build() for config in training.recipe.train.callbacks]
        found = parts + [one if isinstance(one, Callback) else Foreign(one) for one in given]
        self.all = [one for one in found if leads or one.changes_weights or averages(one)]
        self.all.sort(key=lambda one: not one.changes_weights)
        self.weights: dict[str, nn.Parameter] = {}
        averaging = [name for name, one in self._named() if averages(one)]
        self.averages = bool(averaging)
        if len(averaging) > 1:
            raise UsageError(f"callbacks: {' and '.join(averaging)} both average weights; leave one of them out")
        if averaging and isinstance(training.recipe.train.keep, Mean):
            raise UsageError(f"callbacks: {averaging[0]} and train.keep both average weights; use keep: best or last")
        for one in self.all:
            one.ready()

    def tell(self, event: str, *given: object) -> None:
        """Call a hook of each callback. Raise UsageError if it changes weights that it must not change."""
        if event == "start":
            self.weights = dict(self.training.trained.named_parameters())
        for name, one in self._named():
            first = event == "start" and self.training.step == 0
            may_change = one.changes_weights and (first or event == "step")
            before = self._versions()
            with torch.no_grad() if may_change else contextlib.nullcontext():
                getattr(one, event)(self.training, *given)
            wrong = [weight for weight, version in self._versions().items() if version != before[weight]]
            if may_change:
                now = dict(self.training.trained.named_parameters())
                wrong = [weight for weight in wrong if not self.weights[weight].requires_grad]
                wrong += [weight for weight, value in self.weights.items() if now.get(weight) is not value]
            if wrong:
                rule = "only trainable weights may be changed, and only in place" if may_change else RULE
                raise UsageError(f"callbacks: {event} of {name} changes {some(wrong)}; {rule}")

    def _versions(self) -> dict[str, int]:
        """Return the number of changes to each weight. torch does not count those made through `.data`."""
        return {name: weight._version + local(weight)._version for name, weight in self.weights.items()}

    def end(self) -> None:
        """End all callbacks, even if one of them fails."""
        with contextlib.ExitStack() as stack:
            for one in reversed(self.all):
                stack.callback(one.end, self.training)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the weights of the averaging callback, if any, within the block."""
        weights = next((one.weights() for one in self.all if averages(one)), None)
        if not weights:
            yield
            return
        parameters = dict(self.training.trained.named_parameters())
        own = [local(parameters[name].data) for name in weights]
        kept = [value.clone() for value in own]
        torch._foreach_copy_(own, [local(value) for value in weights.values()])
        try:
            yield
        finally:
            torch._foreach_copy_(own, kept)

    def state(self) -> dict[str, Tensor]:
        """Return the state of all callbacks as `callback/key` -> tensor."""
        return {f"{name}/{key}": value for name, one in self._named() for key, value in one.state().items()}

    def load(self, state: Tensors) -> None:
        """Restore each callback that has tensors in `state`."""
        for name, one in self._named():
            own = {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}
            if own:
                one.load(own)

    def _named(self) -> Iterator[tuple[str, Callback]]:
        """Yield the callbacks with unique names."""
        seen: Counter[str] = Counter()
        for one in self.all:
            name = one.name if isinstance(one, Foreign) else one.part_name or type(one).__name__
            seen[name] += 1
            yield name if seen[name] == 1 else f"{name}-{seen[name]}", one


def averages(callback: Callback) -> bool:
    """True if the callback has weights to evaluate and publish."""
    return callback.averages if isinstance(callback, Foreign) else "averages" in callback.capabilities
