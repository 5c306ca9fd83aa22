"""Adapters: no effect before training, only the adapter learns, and merging preserves the outputs."""

from __future__ import annotations

import torch

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import EQUAL, SAME, expect, expect_equal
from tfkit.contracts.training import Trial
from tfkit.training.adapter import Adaptation, Adapter

ADAPTER = ("adapter",)
STEPS = 10


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
        self.learns(STEPS)

    def changed(self) -> str:
        """Return names of model weights that differ from their initial values."""
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
