"""Recomputed layers: the gradients are those of kept activations, bit for bit, and fewer bytes are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.small import outcome, trained
from tests.training.test_processes import ELECTRA, ENCODER, EXPERTS, PAIR, recipe
from tfkit.core.errors import RecipeError
from tfkit.functional.dropout import drawing
from tfkit.recipe.load import Recipe
from tfkit.training.adapter import recompute_layers
from tfkit.training.division import Division
from tfkit.training.progress import Reporter
from tfkit.training.setup import Task, prepare
from tfkit.training.step import computing

DEEP = {"model.num_layers": 3, "model.layer.dropout": 0.1, "model.embedding": {"type": "tokens", "dropout": 0.1}}
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {},
    "packed": {"data.batch": {"tokens": 48, "size": None, "pack": True, "length": 16}},
    "bias": {"model.position": "t5_bias"},
    "encoder": ENCODER,
    "pair": PAIR,
    "experts": {"model.layer.feedforward": {**EXPERTS, "router": {"type": "softmax", "z_loss": 0.1}}},
    "shared": {"model.layer.shared": True},
    "electra": ELECTRA,
    "lora": {"train.adapter": {"type": "lora", "dropout": 0.1}},
}


def task_of(loaded: Recipe) -> Task:
    task = prepare(loaded, Reporter())
    recompute_layers(loaded, task.trained)
    task.model.train()
    return task


def gradients(task: Task, drawn: bool = True) -> tuple[dict[str, Tensor], int]:
    """The gradients of the first batch, with the loss, and the bytes that its forward keeps, each storage once."""
    division = Division(task.trained, computing(task.model, task.train, "float32"))
    batch = task.train.make(0, 0, task.train.plan(0)[0])
    weights = {weight.untyped_storage().data_ptr() for weight in task.trained.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    task.trained.zero_grad()
    if not drawn:  # in a training loop of one's own
        torch.manual_seed(0)
        with drawing(None):
            loss = division.compute(batch).total
            loss.backward()  # type: ignore[no-untyped-call]
    else:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = division.backward(batch, (0, 0, 0), 1.0, True).total
    found = {name: value.grad.clone() for name, value in task.trained.named_parameters() if value.grad is not None}
    return {**found, "loss": loss.detach()}, sum(kept.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drawn", [True, False])
def test_gradients_are_equal_to_the_bit_and_less_is_kept(tmp_path: Path, kind: str, drawn: bool) -> None:
    loaded = recipe(tmp_path, {**DEEP, **KINDS[kind]})
    task = task_of(loaded)
    plain, everything = gradients(task, drawn)
    recompute_layers(recipe(tmp_path, {**DEEP, **KINDS[kind], "train.recompute": "all"}), task.trained)
    again, less = gradients(task, drawn)
    assert plain.keys() == again.keys() and len(plain) > 5
    assert not [name for name, value in plain.items() if not torch.equal(value, again[name])]
    assert not drawn or less < 0.65 * everything


def test_each_layer_that_is_recomputed_keeps_less(tmp_path: Path) -> None:
    sizes = [gradients(task_of(recipe(tmp_path, {**DEEP, "train.recompute": count})))[1] for count in range(4)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4


@pytest.mark.full
def test_a_run_is_the_same_run(tmp_path: Path) -> None:
    runs = [trained(recipe(tmp_path, DEEP, steps=4, recompute=count), tmp_path / str(count)) for count in (0, 2)]
    one, other = (outcome(run.folder) for run in runs)
    assert one == other


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.recompute": 4}, "train.recompute: 4 exceeds the 3 layers of the model; use a smaller number, or all"),
        (
            {
                "train.recompute": 1,
                "model.layer.feedforward": {
                    **EXPERTS,
                    "router": {"type": "sigmoid", "selection_bias": True, "selection_rate": 0.01},
                },
            },
            "each forward updates the selection bias of experts",
        ),
    ],
)
def test_what_a_second_forward_would_change_is_refused(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        trained(recipe(tmp_path, {**DEEP, **overrides}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
