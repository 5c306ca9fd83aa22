"""Optimizers: a step updates exactly the trainable weights, and a resumed run is identical."""

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
    """A small model with tied embeddings and the case's optimizer."""

    def __init__(self, case: Case, model: Model | None = None, rate: float = RATE) -> None:
        self.model = model or small_model("causal", "language_model", VOCABULARY, tied=True)
        self.optimizer: torch.optim.Optimizer = case.config.build().make(self.model, rate)

    def loss(self) -> Tensor:
        """Return the next-token cross-entropy on fixed tokens."""
        ids = tokens(4, 9)
        logits = self.model(input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def step(self, number: int = 1) -> None:
        """Run training steps."""
        for _ in range(number):
            self.optimizer.zero_grad()
            torch.autograd.backward(self.loss())
            self.optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the weights."""
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def moved(self, before: dict[str, Tensor]) -> set[str]:
        """Return the names of weights that differ from `before`."""
        return {name for name, weight in self.model.named_parameters() if not torch.equal(weight, before[name])}


@contract("a step updates every weight once, and training lowers the loss", "built", slots=OPTIMIZER)
def check_step(case: Case) -> None:
    """Take one step, then more on the same tokens."""
    trial = OptimizerTrial(case)
    held = [id(weight) for group in trial.optimizer.param_groups for weight in group["params"]]
    expect(len(held) == len(set(held)), "the optimizer has a weight twice; tied weights count once")
    before, first = trial.weights(), float(trial.loss().detach())
    trial.step()
    with_gradient = {
        name for name, weight in trial.model.named_parameters() if weight.grad is not None and weight.grad.any()
    }
    still = sorted(with_gradient - trial.moved(before))
    expect(not still, f"a step does not change {', '.join(still[:3])} in spite of a gradient")
    finite = all(bool(torch.isfinite(weight).all()) for weight in trial.model.parameters())
    expect(finite, "a weight is not finite after a step")
    trial.step(STEPS)
    last = float(trial.loss().detach())
    expect(last < first, f"after {STEPS} steps on the same tokens the loss is {last:.3f}, before {first:.3f}")


@contract("the learning rate is the schedule's", "step", slots=OPTIMIZER, every_option=True)
def check_learning_rate(case: Case) -> None:
    """Check the initial learning rate; with a rate of 0 no weight may change."""
    trial = OptimizerTrial(case)
    rates = {float(group["lr"]) for group in trial.optimizer.param_groups}
    expect(rates == {RATE}, f"built with learning rate {RATE}, it has {', '.join(map(str, sorted(rates)))}")
    trial.step()
    for group in trial.optimizer.param_groups:
        group["lr"] = 0.0
    before = trial.weights()
    trial.step()
    moved = sorted(trial.moved(before))
    expect(not moved, f"a step with learning rate 0 changes {', '.join(moved[:3])}")


@contract("frozen weights do not change", "step", slots=OPTIMIZER)
def check_frozen(case: Case) -> None:
    """Freeze the embedding and one layer."""
    model = small_model("causal", "language_model", VOCABULARY)
    frozen = {name for name, _ in model.named_parameters() if ".embedding." in name or ".layers.0." in name}
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in frozen)
    trial = OptimizerTrial(case, model)
    before = trial.weights()
    trial.step(2)
    moved = sorted(trial.moved(before) & frozen)
    expect(not moved, f"a step changes {', '.join(moved[:3])}, which is frozen")


@contract("norms and biases have no weight decay by default", "step", slots=OPTIMIZER, every_option=True)
def check_decay(case: Case) -> None:
    """Take steps with zero gradients: only weight decay changes weights."""
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


@contract("a resumed run continues identically", "step", slots=OPTIMIZER, every_option=True)
def check_optimizer_state(case: Case) -> None:
    """Train three steps, save, train three more; repeat the last three from the checkpoint."""
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
        f"{', '.join(differing[:3])} differs 3 steps after resuming from a checkpoint: "
        "the optimizer state is incomplete",
    )
