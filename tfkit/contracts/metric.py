"""Metrics: perfect outputs score best, whatever the order. Callbacks: they observe, and their state is resumed."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tfkit.contracts.cases import Case, load
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect
from tfkit.core.errors import UsageError
from tfkit.core.slots import MetricFacts
from tfkit.models.build import build_model
from tfkit.recipe.rules import OF_OBJECTIVES
from tfkit.runs.checkpoint import Progress
from tfkit.training.callback import Callback, Callbacks, Tracker, Training
from tfkit.training.metric import Metric
from tfkit.training.progress import Reporter

METRIC = ("metric",)
REFERENCES = ("the cat sat on the mat .", "it rains in the small town today", "he reads a book , and she a letter")
WRONG = ("the dog sat on a mat .", "it is raining here", "he read letters to her and a book")
LOSSES = (0.0, 0.1, 1.0, 3.0, 12.0)
NEAR = 1e-9


def scored(metric: Metric, outputs: Sequence[str], references: Sequence[str]) -> float:
    """Return the score; raise Broken unless it is a finite number."""
    score = metric.score(list(outputs), list(references))
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        raise Broken(f"the score {score!r} is not a finite number")
    return float(score)


def reads(kind: str) -> Callable[[Case], bool]:
    """Return a condition that is true if the metric reads `kind`, "loss" or "text"."""
    return lambda case: issubclass(case.part, MetricFacts) and case.part.reads == kind


@contract("the metric declares its input, a loss or texts, and refuses the other kind", "built", slots=METRIC)
def check_reads(case: Case) -> None:
    """Compute a score from both kinds of input."""
    metric: Metric = case.config.build()
    kind = metric.reads
    expect(kind in ("loss", "text"), f'declares reads = {kind!r}; use "loss" or "text"')
    required = metric.measures()
    what = f"declares compares = {required!r}, which no objective declares; available: {', '.join(OF_OBJECTIVES)}"
    expect(required in OF_OBJECTIVES, what)
    try:
        if kind == "loss":
            metric.score(list(REFERENCES), list(REFERENCES))
        else:
            metric.from_loss(1.0)
    except UsageError:
        return
    raise Broken(f"declares reads = {kind!r}, but accepts the other kind of input; raise a UsageError")


@contract("perfect outputs score best", "reads", slots=METRIC, when=reads("text"), every_option=True)
def check_perfect(case: Case) -> None:
    """Score perfect outputs, then outputs with more and more wrong rows."""
    metric = case.config.build()
    sign = 1 if metric.higher_is_better else -1
    right, bad = metric.samples or (REFERENCES, WRONG)
    scores = [scored(metric, (*bad[:wrong], *right[wrong:]), right) for wrong in range(len(bad) + 1)]
    best = scores[0]
    for wrong, score in enumerate(scores[1:], 1):
        what = f"perfect outputs score {best:g}, but {score:g}, which is better, with {wrong} wrong"
        expect(sign * score <= sign * best, what)
    expect(scores[-1] != best, f"perfect outputs and entirely wrong outputs both score {best:g}")


@contract("the order of the examples does not matter", "reads", slots=METRIC, when=reads("text"), every_option=True)
def check_order(case: Case) -> None:
    """Score the same pairs in different orders, and again in the first one."""
    metric = case.config.build()
    right, bad = metric.samples or (REFERENCES, WRONG)
    outputs = (bad[0], *right[1:])
    first = scored(metric, outputs, right)
    for order in ((2, 1, 0), (1, 2, 0), (0, 1, 2)):
        score = scored(metric, [outputs[row] for row in order], [right[row] for row in order])
        expect(abs(score - first) <= NEAR * max(1.0, abs(first)), f"the same pairs score {first:g} and {score:g}")


@contract("unpaired outputs and empty lists are refused", "reads", slots=METRIC, when=reads("text"))
def check_pairs(case: Case) -> None:
    """Score with one output missing, and without outputs."""
    for outputs, references in ((REFERENCES[:2], REFERENCES), ((), ())):
        try:
            score = case.config.build().score(list(outputs), list(references))
        except UsageError:
            continue
        raise Broken(f"{len(outputs)} outputs and {len(references)} references score {score!r}; raise a UsageError")


@contract("a lower loss never scores worse", "reads", slots=METRIC, when=reads("loss"), every_option=True)
def check_loss_order(case: Case) -> None:
    """Score increasing losses."""
    metric = case.config.build()
    sign = 1 if metric.higher_is_better else -1
    scores = [metric.from_loss(loss) for loss in LOSSES]
    for loss, score in zip(LOSSES, scores, strict=True):
        expect(isinstance(score, (int, float)) and math.isfinite(score), f"a loss of {loss:g} scores {score!r}")
    for (low, better), (high, worse) in pairwise(zip(LOSSES, scores, strict=True)):
        what = f"a loss of {high:g} scores {worse:g}, better than {better:g} for a loss of {low:g}"
        expect(sign * worse <= sign * better, what)


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
        training, callbacks = self.training, Callbacks(self.training, [self.callback])
        callbacks.tell("start")
        yield "start"
        while training.step < training.steps:
            self.shrink()
            training.progress.step += 1
            yield "an update"
            loss = {"loss": 2.0 / training.step, "gradient_norm": 1.0} if training.step != 2 else {"skipped": 1}
            callbacks.tell("step", {"step": training.step, "tokens": 8, **loss, "learning_rate": 0.1})
            yield "step"
            if training.step % 2 == 0:
                callbacks.tell("validation", {"valid.loss": 2.5 / training.step})
                yield "validation"
                callbacks.tell("checkpoint", training.folder / f"step-{training.step:08d}")
                yield "checkpoint"
        callbacks.end()
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


@contract(
    "the callback affects training only as it declares", "built", slots=CALLBACK, when=is_local, every_option=True
)
def check_observes(case: Case) -> None:
    """Compare weights, modes and RNG states before and after each event."""
    with tried(case) as trial:
        before = trial.traces()
        for event in trial.events():
            after = trial.traces()
            changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
            if trial.callback.changes_weights and event in ("start", "step"):
                changed = [name for name in changed if name not in dict(trial.training.model.named_parameters())]
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
        second.training.model.load_state_dict(first.training.model.state_dict())
        for _ in second.events():
            pass
        for what in ("state", "weights"):
            one, other = (getattr(trial.callback, what)() or {} for trial in (whole, second))
            same = one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
            expect(same, f"the {what} of a resumed callback differs")
        one, other = whole.training.model.state_dict(), second.training.model.state_dict()
        changed = [name for name, value in one.items() if not torch.equal(value, other[name])]
        expect(not changed, f"a resumed callback changes {', '.join(changed[:3])} differently; see `start` and `state`")
