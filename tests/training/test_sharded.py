"""Weights, gradients and optimizer state in parts: the run of one process, resumed with and without shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small import trained
from tests.training.test_processes import EXPERTS, KINDS, PACKED, PLAIN, differences, recipe, run
from tfkit.core.errors import RecipeError, UsageError
from tfkit.runs.checkpoint import Checkpoints
from tfkit.runs.weights import Weights, local
from tfkit.training.callback import Training
from tfkit.training.division import check_division, units_of
from tfkit.training.processes import Team
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
SHARD = {"train.parallel.shard": True}
DEEP = {"model.num_layers": 2}
SHORT = {"steps": 6, "evaluate_every": 3, "checkpoint_every": 2}


def test_shards_are_one_run_and_another_number_of_processes_goes_on(tmp_path: Path) -> None:
    def halved(training: Training, _: object) -> None:
        weights = list(training.model.parameters())
        assert sum(local(one).numel() for one in weights) < 0.6 * sum(one.numel() for one in weights)

    whole = run(recipe(tmp_path, {**PACKED, **DEEP}, **SHORT), tmp_path / "one", 1)
    folder = tmp_path / "two"
    run(recipe(tmp_path, {**PACKED, **DEEP, **SHARD}, **{**SHORT, "steps": 4}), folder, 2, callbacks=[halved])
    assert sorted(Weights.read(folder / "model.safetensors").tensors) == sorted(
        Weights.read(tmp_path / "one" / "model.safetensors").tensors
    )
    again = run(recipe(tmp_path, {**PACKED, **DEEP}, **SHORT), folder, 1, resume=True)
    assert max(differences(whole, again)) < 2e-5
    assert Checkpoints(folder / "checkpoints").sound(print) == folder / "checkpoints" / "step-00000006"


@pytest.mark.slow
def test_shards_go_on_from_whole_weights(tmp_path: Path) -> None:
    whole = run(recipe(tmp_path, DEEP, **SHORT), tmp_path / "one", 1)
    for steps, (count, more) in zip((2, 4, 6), ((1, {}), (3, SHARD), (2, SHARD)), strict=True):
        loaded = recipe(tmp_path, {**DEEP, **more}, **{**SHORT, "steps": steps})
        again = run(loaded, tmp_path / "other", count, resume=True)
    assert max(differences(whole, again)) < 2e-5


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["decoder", "encoder", "pair"])
def test_one_two_and_four_shards_are_one_run(tmp_path: Path, kind: str) -> None:
    values = {**(PLAIN if kind == "decoder" else KINDS[kind]), **(DEEP if kind != "pair" else {})}
    settings: dict[str, Any] = {"steps": 200, "schedule": {"type": "constant", "lr": 0.002}}
    one = run(recipe(tmp_path, values, **settings), tmp_path / "1", 1)
    for count in (2, 4):
        found = run(recipe(tmp_path, {**values, **SHARD}, **settings), tmp_path / f"{count}", count)
        assert max(differences(one, found)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "train", "within"),
    [
        ({"model.layer.feedforward": {**EXPERTS, "router": {"type": "softmax"}}}, {}, 2e-5),
        ({"model.layer.position": "t5_bias"}, {}, 2e-5),
        ({"model.layer.attention.shared": True}, {}, 2e-5),
        ({"model.layer.attention.value_residual": "learned"}, {"recompute": "all"}, 2e-5),
        ({"model.layer.residual": "hyper_connections"}, {"recompute": "all"}, 2e-5),
        ({"model.layer.residual": "attention_residuals"}, {}, 2e-5),
        ({}, {"recompute": "all"}, 2e-5),
        ({}, {"keep": {"mean": 2}}, 2e-5),
        ({}, {"callbacks": [{"type": "ema", "decay": 0.5}]}, 2e-5),
        ({}, {"freeze": ["decoder.embedding.*", "decoder.layers.0.*"]}, 2e-5),
        ({}, {"optimizer": {"type": "torch", "name": "SGD"}}, 2e-5),
        ({}, {"optimizer": "muon"}, 2e-3),  # computes in bfloat16
        ({}, {"precision": "bfloat16"}, 2e-2),
        ({}, {"validate": {"metrics": ["perplexity"], "samples": 1}}, 2e-5),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_a_recipe_sets_holds_for_shards(
    tmp_path: Path, values: dict[str, Any], train: dict[str, Any], within: float
) -> None:
    one = run(recipe(tmp_path, {**DEEP, **values}, **SHORT, **train), tmp_path / "1", 1)
    two = run(recipe(tmp_path, {**DEEP, **values, **SHARD}, **SHORT, **train), tmp_path / "2", 2)
    assert max(differences(one, two)) < within
    again = run(recipe(tmp_path, {**DEEP, **values}, **{**SHORT, **train, "steps": 8}), tmp_path / "2", 1, resume=True)
    assert len(again) == 8


def test_a_callback_changes_whole_weights_in_each_process(tmp_path: Path) -> None:
    def unit(training: Training, _: object) -> None:
        for weight in training.model.parameters():
            weight.div_(weight.norm())

    unit.changes_weights = True  # type: ignore[attr-defined]
    one = run(recipe(tmp_path, DEEP, **SHORT), tmp_path / "1", 1, callbacks=[unit])
    for name, more in (("copies", {}), ("shards", SHARD)):
        found = run(recipe(tmp_path, {**DEEP, **more}, **SHORT), tmp_path / name, 2, callbacks=[unit])
        assert max(differences(one, found)) < 2e-5


@pytest.mark.slow
def test_a_teacher_stays_whole(tmp_path: Path) -> None:
    teacher = trained(recipe(tmp_path, steps=2), tmp_path / "teacher").folder
    train = {**SHORT, "teacher": {"run": str(teacher), "weight": 0.5}}
    one = run(recipe(tmp_path, DEEP, **train), tmp_path / "1", 1)
    assert max(differences(one, run(recipe(tmp_path, {**DEEP, **SHARD}, **train), tmp_path / "2", 2))) < 2e-5


def test_layers_that_share_weights_are_no_units(tmp_path: Path) -> None:
    apart, shared = (
        prepare(recipe(tmp_path, {**DEEP, **more}), Reporter(False)).model
        for more in ({}, {"model.layer.attention.shared": True})
    )
    assert units_of(apart) == list(apart.stack("decoder").layers)
    assert units_of(shared) == []


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"compile": True}, "remove shard or train.compile"),
        ({"adapter": "lora"}, r"an adapter is merged into unsharded weights"),
        ({"optimizer": {"type": "torch", "name": "Rprop"}}, "torch's Rprop does not support sharded weights"),
    ],
)
def test_what_shards_do_not_serve_is_refused_in_the_recipe(tmp_path: Path, train: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=rf"train\.parallel\.shard: .*{words}"):
        recipe(tmp_path, parallel={"shard": True}, **train)


def test_a_weight_without_an_axis_is_refused(tmp_path: Path) -> None:
    task = prepare(recipe(tmp_path, SHARD), Reporter(False))
    task.model.register_parameter("slope", torch.nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(UsageError, match=r"slope is a scalar and cannot be sharded; give it the shape \[1\]"):
        check_division(task, Team(0, 2))
    check_division(task, Team())
