"""Optimizers, schedules and adapters: a step updates exactly the trainable weights, and resumes identically."""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path

import torch

from tfkit.components.norm import Norm
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import EQUAL, SAME, expect, expect_equal
from tfkit.contracts.options import VOCABULARY
from tfkit.contracts.training import Trial, small_model
from tfkit.models.base import Model
from tfkit.runs.checkpoint import Checkpoints, Progress, restore
from tfkit.training.adapter import Adaptation, Adapter
from tfkit.training.schedule import Schedule

OPTIMIZER = ("optimizer",)
RATE = 0.01
STEPS = 12


class OptimizerTrial(Trial):
    """The training of a small model with the optimizer of the case."""

    def __init__(self, case: Case, model: Model | None = None) -> None:
        super().__init__(model)
        self.optimizer = case.config.build().make(self.model, RATE)


@contract("a step updates each weight once, and training lowers the loss", "built", slots=OPTIMIZER)
def check_step(case: Case) -> None:
    """Take one step, then several more on the same tokens."""
    trial = OptimizerTrial(case)
    held = [id(weight) for group in trial.optimizer.param_groups for weight in group["params"]]
    expect(len(held) == len(set(held)), "the optimizer contains a weight twice; list tied weights only once")
    before = trial.weights()
    trial.step()
    moved, named = trial.moved(before), trial.model.named_parameters()
    still = [name for name, one in named if one.grad is not None and one.grad.any() and name not in moved]
    expect(not still, f"a step does not change {', '.join(still[:3])}, which has a non-zero gradient")
    finite = all(bool(torch.isfinite(weight).all()) for weight in trial.model.parameters())
    expect(finite, "a weight is not finite after a step")
    trial.learns(STEPS)


@contract("the learning rate is that of the schedule", "step", slots=OPTIMIZER, every_option=True)
def check_learning_rate(case: Case) -> None:
    """Check the initial learning rate, and that a step with learning rate 0 changes nothing."""
    trial = OptimizerTrial(case)
    rates = sorted({float(group["lr"]) for group in trial.optimizer.param_groups})
    expect(rates == [RATE], f"the optimizer was built with learning rate {RATE}, but has {', '.join(map(str, rates))}")
    trial.step()
    for group in trial.optimizer.param_groups:
        group["lr"] = 0.0
    before = trial.weights()
    trial.step()
    moved = trial.moved(before)
    expect(not moved, f"a step with learning rate 0 changes {', '.join(moved[:3])}")


@contract("frozen weights do not change", "step", slots=OPTIMIZER)
def check_frozen(case: Case) -> None:
    """Take steps with the embedding and one layer frozen."""
    model = small_model("causal", "language_model", VOCABULARY)
    frozen = {name for name, _ in model.named_parameters() if ".embedding." in name or ".layers.0." in name}
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in frozen)
    trial = OptimizerTrial(case, model)
    before = trial.weights()
    trial.step(2)
    moved = [name for name in trial.moved(before) if name in frozen]
    expect(not moved, f"a step changes frozen weights: {', '.join(moved[:3])}")


@contract("norms and biases have no weight decay by default", "step", slots=OPTIMIZER, every_option=True)
def check_decay(case: Case) -> None:
    """Take steps with zero gradients, which change weights only by weight decay."""
    trial = OptimizerTrial(case)
    norms = {
        id(weight) for module in trial.model.modules() if isinstance(module, Norm) for weight in module.parameters()
    }
    spared = {name for name, weight in trial.model.named_parameters() if weight.dim() < 2 or id(weight) in norms}
    before = trial.weights()
    for weight in trial.model.parameters():
        weight.grad = torch.zeros_like(weight)
    for _ in range(3):
        trial.optimizer.step()
    decayed = [name for name in trial.moved(before) if name in spared]
    if not case.config.spelled().get("decay_norms_and_biases"):
        expect(not decayed, f"{', '.join(decayed[:3])} decays; norms and biases must not")


@contract("resumed training continues identically", "step", slots=OPTIMIZER, every_option=True)
def check_optimizer_state(case: Case) -> None:
    """Take three steps, save, take three more, and repeat these from the checkpoint."""
    trial = OptimizerTrial(case)
    trial.step(3)
    other = OptimizerTrial(case, copy.deepcopy(trial.model))
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints(Path(folder)).save(trial.model, trial.optimizer, Progress(step=3))
        restore(saved, other.model, other.optimizer)
    trial.step(3)
    other.step(3)
    differing = ", ".join(other.moved(trial.weights())[:3])
    what = f"3 steps after resuming from a checkpoint, {differing} differs: the optimizer state is incomplete"
    expect(not differing, what)


SCHEDULE = ("schedule",)
WIDTHS = (16, 1024)
TOTALS = (1, 2, 50, 5000)


def rates(schedule: Schedule, total: int, d_model: int) -> list[float]:
    """Return the learning rates of all steps."""
    return [schedule.lr(step, total, d_model) for step in range(1, total + 1)]


@contract("learning rates are finite, non-negative and not all zero", "built", slots=SCHEDULE, every_option=True)
def check_rates(case: Case) -> None:
    """Compute the learning rates for few and many steps, and for narrow and wide models."""
    schedule: Schedule = case.config.build()
    for total in TOTALS:
        for d_model in WIDTHS:
            lrs = rates(schedule, total, d_model)
            for step, rate in enumerate(lrs, 1):
                good = isinstance(rate, (int, float)) and math.isfinite(rate) and rate >= 0
                expect(good, f"step {step} of {total} has the learning rate {rate}")
            expect(total < TOTALS[-1] or any(lrs), f"all {total} steps have the learning rate 0")


@contract("the learning rate of a step depends only on its number", "rates", slots=SCHEDULE, every_option=True)
def check_pure(case: Case) -> None:
    """Compute the learning rates in reverse order, and with a second schedule, as a resumed run does."""
    schedule, total, d_model = case.config.build(), TOTALS[2], WIDTHS[0]
    lrs = rates(schedule, total, d_model)
    for step, rate in reversed([*enumerate(lrs, 1)]):
        again = schedule.lr(step, total, d_model)
        expect(again == rate, f"step {step} has the learning rate {rate:g} at first, but {again:g} in a second call")
        resumed = case.config.build().lr(step, total, d_model)
        expect(resumed == rate, f"a run resumed at step {step} has the learning rate {resumed:g}, not {rate:g}")


ADAPTER = ("adapter",)


class AdapterTrial(Trial):
    """A small frozen model with the adapter of the case, in eval mode."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.plain = self.logits()
        adapter: Adapter = case.config.build()
        adapter.freeze(self.model)
        self.before, self.names = self.weights(), [*self.model.state_dict()]
        self.adaptation: Adaptation = adapter.attach(self.model, 0).eval()

    def train(self) -> None:
        """Train the adapter for a few steps. Raise Broken unless it learns."""
        self.optimizer = torch.optim.Adam([*self.adaptation.parameters()], lr=0.02)
        self.learns(10)

    def changed(self) -> str:
        return ", ".join(self.moved(self.before)[:3])


@contract("an untrained adapter does not change the model", "built", slots=ADAPTER, every_option=True)
def check_unadapted(case: Case) -> None:
    """Compare the names of weights and the logits before and after attaching the adapter."""
    trial = AdapterTrial(case)
    expect(
        [*trial.model.state_dict()] == trial.names, "changes the names of the model's weights, on which files depend"
    )
    expect_equal(trial.logits(), trial.plain, "the logits with an untrained adapter instead of none", SAME)


@contract("the adapter learns, and the model's weights do not change", "unadapted", slots=ADAPTER, every_option=True)
def check_adapted(case: Case) -> None:
    """Train for a few steps on the same tokens."""
    trial = AdapterTrial(case)
    trial.train()
    trial.adaptation.check_used()
    expect(not trial.changed(), f"training changes frozen weights of the model: {trial.changed()}")


@contract("merging preserves the outputs and is undone exactly", "adapted", slots=ADAPTER)
def check_merged(case: Case) -> None:
    """Compare the logits of the adapted and the merged model, and the weights before and after merging."""
    trial = AdapterTrial(case)
    trial.train()
    adapted = trial.logits()
    with trial.adaptation.merged():
        expect(trial.changed(), "merging does not change the weights of the model")
        expect_equal(trial.logits(), adapted, "the logits after merging instead of before", EQUAL)
        for module in trial.model.modules():  # removes the adapter, as if the weights were loaded into another model
            module._forward_hooks.clear()
        expect_equal(trial.logits(), adapted, "the logits of the merged weights in a model without adapter", EQUAL)
    expect(not trial.changed(), f"{trial.changed()} is not restored after merging")
