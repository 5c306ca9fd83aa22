"""Weights are determined by the seed and survive saving and copying, and models run on `meta`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tfkit.contracts.calls import arguments_of, fresh, model, outputs, run, tokens
from tfkit.contracts.cases import Case, blueprint
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect, expect_finite, twins
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.training.weights import Weights, load_weights


@contract("a seed determines the weights, and building a model does not change the RNG state", "determinism", once=True)
@torch.no_grad()
def check_seed(case: Case) -> None:
    """Build two models with the same seed and one with a different seed."""
    plan, ids = blueprint(case), tokens(2, 6)
    before = torch.get_rng_state()
    first, second, other = (build_model(plan, seed=seed).eval() for seed in (3, 3, 4))
    expect(torch.equal(before, torch.get_rng_state()), "building a model changes the RNG state")
    for (name, weight), same in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        expect(torch.equal(weight, same), f"{name} differs between two models with the same seed")
    different = any(not torch.equal(weight, other.state_dict()[name]) for name, weight in first.state_dict().items())
    expect(different, "two seeds yield equal weights")
    outs = [run(case, ids, on=made) for made in (first, second, first)]
    for out in outs[1:]:
        for name, value in outs[0].items():
            expect(torch.equal(out[name], value), f"{name} differs between two models with the same seed")


@contract("initial weights are finite, and no matrix is constant", "built", slots=("init",))
def check_initial(case: Case) -> None:
    """Check the weights of a newly built model."""
    for name, weight in build_model(blueprint(case), seed=2).named_parameters():
        expect_finite({name: weight}, "as initialized")
        if weight.dim() > 1:
            expect(float(weight.detach().std()) > 0, f"{name} is constant")


@contract("a model survives pickling and copying", "determinism", once=True)
@torch.no_grad()
def check_copies(case: Case) -> None:
    """Copy a model after inference and a backward pass, and compare the outputs."""
    made, ids = fresh(case), tokens(2, 5)
    want = run(case, ids)
    with torch.inference_mode():
        run(case, ids, on=made)
    with torch.enable_grad():
        torch.autograd.backward([value.sum() for value in run(case, ids, on=made).values()])
    for how, twin in twins(made, "a model", case.part):
        for name, value in run(case, ids, on=twin).items():
            expect(torch.equal(value, want[name]), f"{name} of the {how} model differs")


@contract(
    "weights survive saving, tied ones are stored once, and names and shapes on `meta` are equal",
    "determinism",
    once=True,
)
@torch.no_grad()
def check_saving(case: Case) -> None:
    """Save the tensors, each once, and load them into a model with a different seed."""
    made, ids = model(case, torch.float32), tokens(2, 5)
    meta = build_model(blueprint(case), device="meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in meta.state_dict().items()}
    differing = sorted(name for name in shapes.keys() | there.keys() if shapes.get(name) != there.get(name))
    expect(not differing, f"a model on meta has different weights: {', '.join(differing)}")
    other = reloaded(made)
    for name, value in run(case, ids, on=other).items():
        expect(torch.equal(value, run(case, ids, on=made)[name]), f"{name} differs after saving and loading")


def reloaded(made: Model) -> Model:
    """Save the weights of a model, and load them into a model with a different seed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        Weights.of(made).save(path)
        other = build_model(made.blueprint, dtype=next(made.parameters()).dtype, seed=99).eval()
        load_weights(other, path)
    return other


@contract("a model on `meta` runs and has the right shapes, so that costs can be counted", "shapes", once=True)
@torch.no_grad()
def check_meta(case: Case) -> None:
    """Run a forward pass on the meta device."""
    made = build_model(blueprint(case), device="meta").eval()
    arguments = {name: value.to("meta") for name, value in arguments_of(case, tokens(2, 5)).items()}
    want = run(case, tokens(2, 5))
    for name, value in outputs(case, made(**arguments)).items():
        shapes = f"{name} has shape {list(value.shape)} on meta, but {list(want[name].shape)} on the CPU"
        expect(value.shape == want[name].shape, shapes)
