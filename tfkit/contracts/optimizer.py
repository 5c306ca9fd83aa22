"""Optimizers: a step updates exactly the trainable weights, and resumed training is identical."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from tfkit.components.norm import Norm
from tfkit.contracts.calls import tokens
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.contracts.options import VOCABULARY
from tfkit.contracts.training import small_model
from tfkit.models.base import Model
from tfkit.training.checkpoint import Checkpoints, Progress, restore

OPTIMIZER = ("optimizer",)
RATE = 0.01
STEPS = 12


class OptimizerTrial:
    """A small model with tied embeddings, and the optimizer of the case."""

    def __init__(self, case: Case, model: Model | None = None, rate: float = RATE) -> None:
        self.model = model or small_model("causal", "language_model", VOCABULARY, tied=True)
        self.optimizer: torch.optim.Optimizer = case.config.build().make(self.model, rate)

    def loss(self) -> Tensor:
        """Return the next-token cross-entropy on a fixed batch of tokens."""
        ids = tokens(4, 9)
        logits = self.model(input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def step(self, number: int = 1) -> None:
        """Take a number of training steps."""
        for _ in range(number):
            self.optimizer.zero_grad()
            torch.autograd.backward(self.loss())
            self.optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all weights."""
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def moved(self, before: dict[str, Tensor]) -> set[str]:
        """Return the names of weights that differ from `before`."""
        return {name for name, weight in self.model.named_parameters() if not torch.equal(weight, before[name])}


@contract("a step updates each weight once, and training lowers the loss", "built", slots=OPTIMIZER)
def check_step(case: Case) -> None:
    """Take one step, then several more on the same tokens."""
    trial = OptimizerTrial(case)
    held = [id(weight) for group in trial.optimizer.param_groups for weight in group["params"]]
    expect(len(held) == len(set(held)), "the optimizer contains a weight twice; list tied weights only once")
    before, first = trial.weights(), float(trial.loss().detach())
    trial.step()
    with_gradient = {
        name for name, weight in trial.model.named_parameters() if weight.grad is not None and weight.grad.any()
    }
    still = sorted(with_gradient - trial.moved(before))
    expect(not still, f"a step does not change {', '.join(still[:3])}, which has a non-zero gradient")
    finite = all(bool(torch.isfinite(weight).all()) for weight in trial.model.parameters())
    expect(finite, "a weight is not finite after a step")
    trial.step(STEPS)
    last = float(trial.loss().detach())
    expect(
        last < first, f"{STEPS} steps on the same tokens do not lower the loss: {first:.3f} before, {last:.3f} after"
    )


@contract("the learning rate is that of the schedule", "step", slots=OPTIMIZER, every_option=True)
def check_learning_rate(case: Case) -> None:
    """Check the initial learning rate, and that a step with learning rate 0 changes nothing."""
    trial = OptimizerTrial(case)
    rates = {float(group["lr"]) for group in trial.optimizer.param_groups}
    expect(
        rates == {RATE},
        f"the optimizer was built with learning rate {RATE}, but has {', '.join(map(str, sorted(rates)))}",
    )
    trial.step()
    for group in trial.optimizer.param_groups:
        group["lr"] = 0.0
    before = trial.weights()
    trial.step()
    moved = sorted(trial.moved(before))
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
    moved = sorted(trial.moved(before) & frozen)
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
    decayed = sorted(trial.moved(before) & spared)
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
    differing = sorted(other.moved(trial.weights()))
    expect(
        not differing,
        f"3 steps after resuming from a checkpoint, {', '.join(differing[:3])} differs: "
        "the optimizer state is incomplete",
    )
