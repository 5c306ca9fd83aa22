"""Adapters: a frozen base, few trained weights, merged where a run is evaluated and published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tfkit
from tfkit.core.errors import RecipeError, RecipeWarning, UsageError
from tfkit.run import load_run
from tfkit.runs.weights import Weights, read_tensors
from tfkit.training.adapter import LowRank, LowRankAdaptation

from ..sampling import looped
from .small import small, trained

LORA = {"type": "lora", "rank": 2, "alpha": 4, "on": ["query", "value"], "dropout": 0.1}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return trained(small(tmp_path, steps=2), tmp_path / "base").folder


def lora(base: Path, more: dict[str, Any] | None = None, **train: Any) -> tfkit.Recipe:
    return small(base.parent, adapter={**LORA, **(more or {})}, init_from=str(base), **train)


def tensors(file: Path) -> dict[str, torch.Tensor]:
    return Weights.read(file).by_name()


@pytest.mark.full
def test_only_the_adapter_is_trained_and_the_run_has_both(base: Path) -> None:
    run = trained(lora(base, steps=6, keep="last"), base.parent / "run")
    before, after = tensors(base / "model.safetensors"), tensors(run.folder / "model.safetensors")
    pairs, _ = read_tensors(run.folder / "adapter.safetensors")
    adapted = {f"decoder.layers.0.attention.{name}" for name in ("query", "value")}
    assert {name.rpartition(".")[0] for name in pairs} == adapted
    assert {name for name, value in after.items() if not torch.equal(value, before[name])} == {
        f"{name}.weight" for name in adapted
    }
    for name in adapted:
        update = 4 / 2 * pairs[f"{name}.up"] @ pairs[f"{name}.down"]
        torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + update, rtol=0, atol=1e-7)
    frozen = tensors(run.folder / "checkpoints/step-00000006/model.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in frozen.items())
    state, _ = read_tensors(run.folder / "checkpoints/step-00000006/optimizer.safetensors")
    averages = [value for name, value in state.items() if name.endswith("exp_avg")]
    assert sorted(tuple(one.shape) for one in averages) == [(2, 8), (2, 8), (8, 2), (8, 2)]
    log = (run.folder / "train.log").read_text()
    assert "adapter lora: 64 parameters, " in log and "2 projections: decoder.layers.0.attention.query" in log


@pytest.mark.full
def test_validation_measures_what_is_published(base: Path) -> None:
    loaded = lora(base, steps=4, keep="last", validate={"metrics": ["perplexity"], "samples": 1})
    run = trained(loaded, base.parent / "run")
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert load_run(run.folder).evaluate("valid")["loss"] == pytest.approx(last["valid.loss"], abs=1e-6)


@pytest.mark.full
def test_more_parameters_may_be_trained(base: Path) -> None:
    run = trained(lora(base, {"also": ["*feedforward.up*"]}, steps=3, keep="last"), base.parent / "run")
    before, after = tensors(base / "model.safetensors"), tensors(run.folder / "model.safetensors")
    changed = {
        name.rpartition(".")[0].rpartition(".")[2] for name in after if not torch.equal(before[name], after[name])
    }
    assert changed == {"query", "value", "up"}


@pytest.mark.full
@pytest.mark.parametrize("vocab_size", ["tokenizer", 12])
@pytest.mark.parametrize(("on", "names"), [(["head.output"], 1), (["query", "head.output", "*.projection"], 3)])
def test_an_update_of_a_layer_whose_product_is_fused_is_trained(
    tmp_path: Path, vocab_size: str | int, on: list[str], names: int
) -> None:
    """The output layer, fused with the loss, and a router, which computes in float32."""
    experts = {"type": "experts", "num_experts": 8, "num_active": 2, "expert": {"type": "mlp", "d_ff": 8}}
    model = {"model.head.tied": False, "model.vocab_size": vocab_size, "model.layer.feedforward": experts}
    trained(small(tmp_path, model, steps=1), tmp_path / "base")
    adapter = {"type": "lora", "on": on, "rank": 8}
    run = trained(
        small(tmp_path, model, adapter=adapter, init_from=str(tmp_path / "base"), keep="last", steps=3),
        tmp_path / "run",
    )
    before, after = (tensors(tmp_path / name / "model.safetensors") for name in ("base", "run"))
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert len(changed) == names and "head.output.weight" in changed
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert load_run(run.folder).evaluate("valid")["loss"] == pytest.approx(last["valid.loss"], abs=1e-6)


@looped(
    ("adapter", "train", "message"),
    [
        (
            {"on": ["querry"]},
            {},
            r"adapter\.on: no linear layer is called 'querry'; available: query, key, value, output",
        ),
        ({"on": ["head.*"]}, {}, r"adapter\.on: head\.output shares its weight with another module"),
        ({"also": ["heads"]}, {}, r"adapter\.also\[0\]: no parameter name starts with 'heads'"),
        ({"rank": 0}, {}, r"adapter\.rank"),
        ({"rank": 1000}, {}, r"adapter\.rank: 1000 exceeds the width \d+ of .*\.query; use at most \d+"),
        ({}, {"freeze": ["decoder"]}, r"train\.freeze: train\.adapter freezes the model"),
        ({}, {"groups": [{"kind": "norm"}]}, r"train\.groups: train\.adapter freezes"),
        ({}, {"layer_decay": 0.5}, r"train\.layer_decay: train\.adapter freezes"),
        ({}, {"keep": {"mean": 2}}, r"train\.keep: a mean of checkpoints would omit the adapter"),
    ],
)
def test_what_an_adapter_does_not_follow_is_refused(
    tmp_path: Path, adapter: dict[str, Any], train: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        small(tmp_path, adapter={**LORA, **adapter}, **train)


def test_adapting_random_weights_is_doubted(tmp_path: Path) -> None:
    loaded = small(tmp_path, adapter=LORA)
    with pytest.warns(RecipeWarning, match="the model to adapt has random weights"):
        loaded.tell_warnings()


def test_weights_that_compute_nothing_are_told() -> None:
    adaptation = LowRankAdaptation({"a.layers.0.query": nn.Linear(2, 2)}, 1, 1.0, 0.0, seed=0)
    with pytest.raises(UsageError, match=r"train\.adapter: a\.layers\.0\.query\.down, .*\.up: the model does not use"):
        adaptation.check_used()


def test_a_low_rank_update_is_pefts(tmp_path: Path) -> None:
    """Forward and gradients, on the same weights."""
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(6, 5))
    own = LowRank(base[0], 3, 8 / 3, 0.0, torch.Generator().manual_seed(0))
    nn.init.normal_(own.up)
    wrapped = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=8, target_modules=["0"]))
    layer = wrapped.base_model.model[0]
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(own.down)
        layer.lora_B["default"].weight.copy_(own.up)
    x = torch.randn(4, 6)
    ours = layer.base_layer(x) + own(x)
    theirs = wrapped(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(own.down.grad, layer.lora_A["default"].weight.grad, rtol=0, atol=1e-5)
    torch.testing.assert_close(own.up.grad, layer.lora_B["default"].weight.grad, rtol=0, atol=1e-5)
