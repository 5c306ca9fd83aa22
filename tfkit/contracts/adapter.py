"""Adapters: no effect before training, only the adapter learns, and merging preserves the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.contracts.calls import tokens
from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import EQUAL, SAME, expect, expect_equal
from tfkit.contracts.options import VOCABULARY
from tfkit.contracts.training import small_model
from tfkit.training.adapter import Adaptation, Adapter

ADAPTER = ("adapter",)
STEPS = 10


class AdapterTrial:
    """A small frozen model with the adapter of the case, in eval mode."""

    def __init__(self, case: Case) -> None:
        self.model = small_model("causal", "language_model", VOCABULARY, tied=True)
        self.plain = self.logits()
        adapter: Adapter = case.config.build()
        adapter.freeze(self.model)
        self.before = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.adaptation: Adaptation = adapter.attach(self.model, 0).eval()

    def logits(self) -> Tensor:
        """Return the logits for a fixed batch of tokens."""
        logits: Tensor = self.model(input_ids=tokens(4, 9)[:, :-1]).logits
        return logits

    def train(self) -> tuple[float, float]:
        """Train the adapter; return the first and the last loss."""
        optimizer = torch.optim.Adam([*self.adaptation.parameters()], lr=0.02)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            targets = tokens(4, 9)[:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(self.logits().flatten(0, 1), targets)
            torch.autograd.backward(loss)
            losses.append(float(loss.detach()))
            optimizer.step()
        return losses[0], losses[-1]

    def changed(self) -> list[str]:
        """Return the names of model weights that differ from their initial values."""
        return [name for name, value in self.model.state_dict().items() if not torch.equal(value, self.before[name])]


@contract("an untrained adapter does not change the model", "built", slots=ADAPTER, every_option=True)
def check_unadapted(case: Case) -> None:
    """Compare the names of weights and the logits before and after attaching the adapter."""
    trial = AdapterTrial(case)
    names = trial.model.state_dict().keys()
    expect(names == trial.before.keys(), "changes the names of the model's weights, on which files depend")
    expect_equal(trial.logits(), trial.plain, "the logits with an untrained adapter instead of none", SAME)


@contract("the adapter learns, and the model's weights do not change", "unadapted", slots=ADAPTER, every_option=True)
def check_adapted(case: Case) -> None:
    """Train for a few steps on the same tokens."""
    trial = AdapterTrial(case)
    first, last = trial.train()
    expect(
        last < first, f"{STEPS} steps on the same tokens do not lower the loss: {first:.3f} before, {last:.3f} after"
    )
    trial.adaptation.check_used()
    expect(not trial.changed(), f"training changes frozen weights of the model: {', '.join(trial.changed()[:3])}")


@contract("merging preserves the outputs and is undone exactly", "adapted", slots=ADAPTER)
def check_merged(case: Case) -> None:
    """Compare the logits of the adapted and the merged model, and the weights before and after merging."""
    trial = AdapterTrial(case)
    trial.train()
    adapted = trial.logits()
    with trial.adaptation.merged():
        expect(bool(trial.changed()), "merging does not change the weights of the model")
        expect_equal(trial.logits(), adapted, "the logits after merging instead of before", EQUAL)
        for module in trial.model.modules():  # removes the adapter, as if the weights were loaded into another model
            module._forward_hooks.clear()
        expect_equal(trial.logits(), adapted, "the logits of the merged weights in a model without adapter", EQUAL)
    expect(not trial.changed(), f"{', '.join(trial.changed()[:3])} is not restored after merging")
