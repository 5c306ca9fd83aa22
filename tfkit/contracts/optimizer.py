"""Optimizers: a step updates exactly the trainable weights, and resumed training is identical."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch

from tfkit.components.norm import Norm
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.contracts.options import VOCABULARY
from tfkit.contracts.training import Trial, small_model
from tfkit.models.base import Model
from tfkit.training.checkpoint import Checkpoints, Progress, restore

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
