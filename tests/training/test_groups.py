"""Groups of parameters: a factor on the rate and a weight decay of their own, by name, by kind and by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small import small, trained
from tfkit.core.errors import RecipeError, UsageError
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.parameters import parameters_of
from tfkit.recipe.settings.sections import Train
from tfkit.training.optimizer import regroup, set_rate

from ..sampling import looped


@pytest.fixture
def model() -> Model:
    """A decoder of three layers with a learned table and rotary positions, its head tied."""
    sets = ["model.num_layers=3", "model.d_model=8", "model.layer.attention.num_heads=2", "model.vocab_size=11"]
    return build_model(load_recipe("gpt2", sets=[*sets, "model.max_length=8"]).blueprint(), seed=0)


def rates(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(one)]: group["lr"] for group in optimizer.param_groups for one in group["params"]}


def grouped(model: Model, *groups: dict[str, Any], **options: Any) -> torch.optim.Optimizer:
    settings = Train.model_validate({"groups": list(groups), "optimizer": "adamw", **options})
    optimizer = settings.optimizer.build().make(model, 1.0)
    regroup(optimizer, model, settings)
    set_rate(optimizer, 1.0)
    return optimizer


def test_every_parameter_is_in_one_group_and_has_one_kind(model: Model) -> None:
    found = parameters_of(model)
    assert [id(one.value) for one in found] == [id(parameter) for parameter in model.parameters()]
    slots = {one.names[0]: one.slot for one in found}
    assert slots["decoder.embedding.tokens.weight"] == "embedding"
    assert slots["decoder.position.0.table.weight"] == "position"
    assert slots["decoder.layers.0.attention.query.weight"] == "attention"
    assert slots["decoder.layers.2.feedforward_norm.bias"] == "norm"
    optimizer = grouped(model, {"kind": "norm", "rate": 3.0}, layer_decay=0.5)
    held = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())


def test_rates_by_name_and_kind_multiply(model: Model) -> None:
    found = rates(
        model,
        grouped(model, {"kind": "attention", "rate": 0.5}, {"names": ["*.layers.1.*"], "rate": 3.0}),
    )
    assert found["decoder.layers.0.attention.query.weight"] == 0.5
    assert found["decoder.layers.1.attention.query.weight"] == 1.5
    assert found["decoder.layers.1.feedforward.up.weight"] == 3.0
    assert found["decoder.layers.1.attention_norm.weight"] == 3.0  # a norm is no attention
    assert found["decoder.embedding.tokens.weight"] == 1.0


def test_a_group_selects_by_name_and_kind_at_once(model: Model) -> None:
    found = rates(model, grouped(model, {"kind": "bias", "names": ["*.attention.*"], "rate": 2.0}))
    assert {name for name, rate in found.items() if rate == 2.0} == {
        name for name in found if ".attention." in name and name.endswith(".bias")
    }


def test_matrices_are_those_of_hidden_layers(model: Model) -> None:
    found = rates(model, grouped(model, {"kind": "matrix", "rate": 2.0}))
    chosen = {name for name, rate in found.items() if rate == 2.0}
    assert all(".layers." in name and name.endswith(".weight") and "norm" not in name for name in chosen)
    assert len(chosen) == 3 * 6


def test_a_tied_table_answers_to_both_of_its_names(model: Model) -> None:
    assert model.head.output.weight is model.decoder.embedding.tokens.weight  # type: ignore[union-attr]
    found = rates(model, grouped(model, {"names": ["head.output.*"], "rate": 2.0}))
    assert {name for name, rate in found.items() if rate == 2.0} == {"decoder.embedding.tokens.weight"}


def test_layer_decay(model: Model) -> None:
    found = rates(model, grouped(model, layer_decay=0.5))
    assert found["decoder.final_norm.weight"] == 1.0
    assert found["decoder.layers.2.attention.query.weight"] == 0.5
    assert found["decoder.layers.0.attention.query.weight"] == 0.125
    assert found["decoder.embedding.tokens.weight"] == found["decoder.position.0.table.weight"] == 0.0625


def test_the_decay_of_the_last_group_counts_and_the_optimizer_s_stays(model: Model) -> None:
    optimizer = grouped(
        model,
        {"kind": "matrix", "weight_decay": 0.3},
        {"names": ["*.layers.0.*"], "kind": "matrix", "weight_decay": 0.0},
        optimizer={"type": "adamw", "weight_decay": 0.1},
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = {names[id(one)]: group["weight_decay"] for group in optimizer.param_groups for one in group["params"]}
    assert decays["decoder.layers.1.feedforward.up.weight"] == 0.3
    assert decays["decoder.layers.0.feedforward.up.weight"] == 0.0
    assert decays["decoder.embedding.tokens.weight"] == 0.1
    assert decays["decoder.final_norm.weight"] == 0.0


def test_an_optimizer_without_decay_is_refused_by_name(model: Model) -> None:
    with pytest.raises(UsageError, match=r"train\.groups: this optimizer has no weight_decay"):
        grouped(model, {"kind": "matrix", "weight_decay": 0.1}, optimizer={"type": "torch", "name": "Rprop"})


@pytest.mark.full
def test_a_run_from_before_there_were_groups_goes_on(tmp_path: Path) -> None:
    run = trained(small(tmp_path), tmp_path / "run")
    file = run.folder / "resolved.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("  groups:", "  layer_decay:"))]
    file.write_text("\n".join(lines) + "\n")
    (run.folder / "SHA256SUMS").unlink()
    assert trained(small(tmp_path, steps=5), run.folder, resume=True)


@looped(
    ("groups", "message"),
    [
        ([{"names": ["encoder.*"], "rate": 2.0}], r"train\.groups\[0\]: no parameter has a name matching encoder\.\*"),
        ([{"kind": "norm"}, {"kind": "mixer"}], r"train\.groups\[1\]: no parameter has kind mixer"),
        ([{"rate": 2.0}], r"selects no parameters; set names, kind, or both"),
        ([{"kind": "nrm"}], r"Did you mean 'norm'\?"),
        ([{"kind": "norm", "rate": 0.0}], r"train\.groups\[0\]\.rate: must be greater than 0"),
    ],
)
def test_a_group_that_is_wrong_is_told_with_its_place(groups: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        small(tmp_path, groups=groups)


@looped("decay", [0.0, 1.5, "half"])
def test_a_layer_decay_is_above_0_and_at_most_1(decay: Any, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.layer_decay"):
        small(tmp_path, layer_decay=decay)
