"""Callbacks: they do not affect training, and their state survives resumption."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tfkit.contracts.cases import Case, load
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.models.build import build_model
from tfkit.training.callback import Callback, Tracker, Training
from tfkit.training.checkpoint import Progress
from tfkit.training.progress import Reporter

CALLBACK = ("callback",)
STEPS = 4


def is_local(case: Case) -> bool:
    """True unless the callback forwards metrics to a tracking library."""
    return not issubclass(case.part, Tracker)


class CallbackTrial:
    """The callback of the case in a simulated training run, in which weights shrink at each step."""

    def __init__(self, case: Case, folder: Path, step: int = 0) -> None:
        recipe = load(Case("model", "decoder", "decoder"))
        model = build_model(recipe.blueprint(), seed=1).train()
        self.training = Training(recipe, model, model, folder, STEPS, Progress(step=step), Reporter(False))
        for _ in range(step):
            self.shrink()
        self.callback: Callback = case.config.build()

    def shrink(self) -> None:
        """Change all weights in place of an optimizer."""
        with torch.no_grad():
            for weight in self.training.model.parameters():
                weight.mul_(0.9)

    def events(self) -> Iterator[str]:
        """Trigger all events in order, yielding the name of each event after it."""
        callback, training = self.callback, self.training
        callback.ready()
        callback.start(training)
        yield "start"
        while training.step < training.steps:
            self.shrink()
            training.progress.step += 1
            yield "an update"
            loss = {"loss": 2.0 / training.step, "gradient_norm": 1.0} if training.step != 2 else {"skipped": 1}
            callback.step(training, {"step": training.step, "tokens": 8, **loss, "learning_rate": 0.1})
            yield "step"
            if training.step % 2 == 0:
                callback.validation(training, {"valid.loss": 2.5 / training.step})
                yield "validation"
                callback.checkpoint(training, training.folder / f"step-{training.step:08d}")
                yield "checkpoint"
        callback.end(training)
        yield "end"

    def traces(self) -> dict[str, Tensor]:
        """Return everything that a callback must not change: weights, modes and RNG states."""
        model, (_, numbers, *_) = self.training.model, np.random.get_state(legacy=True)
        found = {name: value.clone() for name, value in model.state_dict().items()}
        found |= {f"the mode of {name}": torch.tensor(one.training) for name, one in model.named_modules()}
        found |= {"torch's RNG": torch.get_rng_state(), "numpy's RNG": torch.tensor(numbers)}
        return found | {"random's RNG": torch.tensor(hash(random.getstate()))}


@contextmanager
def tried(case: Case, step: int = 0) -> Iterator[CallbackTrial]:
    """Provide a trial in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield CallbackTrial(case, Path(folder), step)


@contract("the callback does not affect training", "built", slots=CALLBACK, when=is_local, every_option=True)
def check_observes(case: Case) -> None:
    """Compare weights, modes and RNG states before and after each event."""
    with tried(case) as trial:
        before = trial.traces()
        for event in trial.events():
            after = trial.traces()
            changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
            expect(event == "an update" or not changed, f"{event} changes {', '.join(changed[:3])}")
            before = after


@contract(
    "weights that the callback provides are declared and match the model", "observes", slots=CALLBACK, when=is_local
)
def check_averages(case: Case) -> None:
    """Compare the names and shapes of the callback's weights with those of the model."""
    with tried(case) as trial:
        for event in trial.events():
            weights, declared = trial.callback.weights(), "averages" in trial.callback.capabilities
            what = f"after {event}, weights() is not None; declare capabilities = {{'averages'}}"
            expect(declared or weights is None, what)
            expect(not declared or weights is not None, f"declares 'averages', but weights() is None after {event}")
            shapes = {name: value.shape for name, value in trial.training.model.named_parameters()}
            odd = [name for name, value in (weights or {}).items() if shapes.get(name) != value.shape]
            names = ", ".join(odd[:3])
            expect(not odd, f"weights() contains {names}, which is not a parameter or has a different shape")


@contract(
    "after resuming, the callback's state equals that of an uninterrupted run",
    "observes",
    slots=CALLBACK,
    when=is_local,
)
def check_callback_state(case: Case) -> None:
    """Stop after two steps, load the state into a new callback, continue, and compare with an uninterrupted one."""
    with tried(case) as whole, tried(case) as first, tried(case, step=2) as second:
        first.training.steps = 2
        for trial in (whole, first):
            for _ in trial.events():
                pass
        second.callback.load({name: value.clone() for name, value in first.callback.state().items()})
        for _ in second.events():
            pass
        for what in ("state", "weights"):
            one, other = (getattr(trial.callback, what)() or {} for trial in (whole, second))
            same = one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
            expect(same, f"the {what} of a resumed callback differs")
