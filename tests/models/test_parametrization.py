"""muP: nothing changes at the base size, and what follows from a larger one is what the papers' tables say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit.components.init import Init
from tfkit.contracts.options import VOCABULARY
from tfkit.contracts.saving import change_of, grown
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.registry import register
from tfkit.models import build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.sections import Train
from tfkit.training.optimizer import regroup

from ..recipe.fuzz.oracle import difference, groups
from ..sampling import looped

MODEL: dict[str, Any] = {
    "type": "decoder",
    "d_model": 32,
    "num_layers": 4,
    "vocab_size": 50,
    "max_length": 16,
    "embedding": {"type": "tokens", "scale": "sqrt_d_model"},
    "position": "learned",
    "layer": {
        "residual": "pre_norm",
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 4},
        "feedforward": {"type": "mlp", "d_ff": 64},
    },
    "head": {"type": "language_model", "tied": True},
    "init": {"type": "normal", "std": 0.02},
}
BASE = {"d_model": 8, "layer.feedforward.d_ff": 16}


def recipe(base: dict[str, int] | None, **model: Any) -> Recipe:
    chosen = {} if base is None else {"parametrization": {"type": "mup", "base": base}}
    return load_recipe({"tfkit": 1, "model": {**MODEL, **model, **chosen}})


def test_at_the_base_size_nothing_changes_by_a_bit() -> None:
    own = {"d_model": 32, "layer.feedforward.d_ff": 64, "num_layers": 4}
    plain, chosen = (build_model(recipe(base).blueprint(), seed=1) for base in (None, own))
    ids = torch.arange(12).view(1, 12)
    assert torch.equal(plain(ids).logits, chosen(ids).logits)
    optimizer = torch.optim.AdamW(chosen.parameters(), lr=0.1)
    before = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    regroup(optimizer, chosen, Train())
    assert len(optimizer.param_groups) == 1 and before.items() <= optimizer.param_groups[0].items()


def test_the_factors_are_those_of_the_papers() -> None:
    found = recipe({**BASE, "num_layers": 2}).blueprint().decoder
    assert found is not None
    layer, options = found.layers[0], dict(found.layers[0].sublayers[0].config)
    assert options["scale"] == math.sqrt(2) / 8, "1 / head_dim, and 1 / sqrt(head_dim) at the base's 2"
    assert layer.residual.branch_scale == 0.5, "base layers / layers"
    assert found.embedding is not None and dict(found.embedding)["scale"] == math.sqrt(8), "that of the base"
    head = recipe(BASE).blueprint().head
    assert head is not None and dict(head)["scale"] == 0.25, "base width / width"


@pytest.mark.parametrize("init", [{"type": "normal", "std": 0.02}, "xavier"])
def test_initial_scales_follow_the_fan_in(init: Any) -> None:
    wide = build_model(recipe(BASE, init=init, d_model=256, num_layers=1).blueprint(), seed=0)
    small = build_model(recipe(None, init=init, d_model=8, num_layers=1).blueprint(), seed=0)
    stds = {name: weight.std().item() for name, weight in small.named_parameters() if weight.dim() == 2}
    for name, weight in wide.named_parameters():
        if weight.dim() != 2 or "feedforward" in name:  # its width is the base's times 4 here
            continue
        ratio = 1.0 if "embedding" in name or "position" in name else 32**-0.5
        assert weight.std().item() / stds[name] == pytest.approx(ratio, rel=0.25), name


def test_rates_decay_and_eps_by_group() -> None:
    model = build_model(recipe({**BASE, "num_layers": 2}).blueprint(), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, eps=1e-8, weight_decay=0.1)
    regroup(optimizer, model, Train())
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = {
        names[id(weight)]: (group["rate"], group["weight_decay"], group["eps"])
        for group in optimizer.param_groups
        for weight in group["params"]
    }
    assert found["decoder.layers.0.attention.query.weight"] == pytest.approx((1 / 4, 0.4, 1e-8 / 4 / 2))
    assert found["decoder.layers.0.feedforward.down.bias"] == pytest.approx((1, 0.1, 1e-8 / 4 / 2))
    assert found["decoder.embedding.tokens.weight"] == pytest.approx((1, 0.1, 1e-8 / 4))


def test_with_the_exponent_of_one_half_rates_fall_with_depth() -> None:
    chosen = {"type": "mup", "base": {"num_layers": 1}, "depth_exponent": 0.5}
    model = build_model(load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": chosen}}).blueprint(), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    regroup(optimizer, model, Train())
    assert {group["rate"] for group in optimizer.param_groups} == {1.0, 0.5}
    assert model.blueprint.decoder is not None
    assert model.blueprint.decoder.layers[0].residual.branch_scale == 0.5


def test_the_change_of_logits_grows_with_the_width_only_without_it() -> None:
    model = {**MODEL, "d_model": 16, "num_layers": 2, "vocab_size": VOCABULARY}
    small = {"tfkit": 1, "model": model}
    changes = [change_of(grown(small, factor)) for factor in (1, 4, 16)]
    standard = [change_of(grown(small, factor, parametrized=False)) for factor in (1, 4, 16)]
    assert changes[0] == standard[0]
    assert max(changes) < 2 * min(changes)
    assert standard[2] > 6 * standard[0]


PAIR = {
    **{key: value for key, value in MODEL.items() if key not in ("num_layers", "type", "embedding")},
    "type": "encoder_decoder",
    "embedding": {"type": "tokens", "shared": True},
    "encoder": {"num_layers": 2},
    "decoder": {"num_layers": 3},
}
KINDS = {
    **MODEL,
    "layers": {"local": {"mask": {"type": "window", "size": 4}}, "all": {"feedforward": None}},
    "pattern": ["local", "all"],
}


FF = MODEL["layer"]["feedforward"]
REPEATED = {**MODEL, "layer": {**MODEL["layer"], "sublayers": ["feedforward", "attention", "feedforward"]}}
WIDER = {**MODEL, "layers": {"wide": {"feedforward": {"d_ff": 128}}, "all": {}}, "pattern": ["wide", "all"]}
EACH = {**MODEL, "layer": {**MODEL["layer"], "feedforward": {**FF, "d_ff": {"per_layer": [64, 32, 32, 16]}}}}
TWO = {"layers.wide.feedforward.d_ff": 8, "layers.all.feedforward.d_ff": 4}


@pytest.mark.parametrize(
    ("model", "base"),
    [
        (MODEL, {**BASE, "num_layers": 1}),
        (PAIR, {**BASE, "num_layers": 1}),
        (KINDS, BASE),
        (REPEATED, BASE),
        (WIDER, BASE),
        (WIDER, {"d_model": 8, **TWO}),
        ({**WIDER, "layers": {"wide": {}, "all": {}}}, {"d_model": 8, **TWO}),
        (EACH, {"d_model": 8}),
        (EACH, BASE),
        (MODEL, {"d_model": 32}),
    ],
    ids=["one", "pair", "kinds", "repeated", "wider", "two", "only in the base", "each", "of one layer", "same"],
)
def test_resolved_text_gives_the_same_model(model: dict[str, Any], base: dict[str, int], tmp_path: Path) -> None:
    source = load_recipe({"tfkit": 1, "model": {**model, "parametrization": {"type": "mup", "base": base}}})
    (tmp_path / "resolved.yaml").write_text(source.resolved())
    again = load_recipe(tmp_path / "resolved.yaml")
    assert again.blueprint() == source.blueprint()
    assert difference(*(build_model(found.blueprint(), seed=3) for found in (source, again))) is None


def test_layers_that_differ_only_in_the_base_have_their_own_rates() -> None:
    equal = {**WIDER, "layers": {"wide": {}, "all": {}}}
    found = groups(build_model(recipe({"d_model": 8, **TWO}, **equal).blueprint()))
    rates = [found[f"decoder.layers.{layer}.feedforward.down.weight"][0] for layer in range(4)]
    assert rates == [1 / 8, 1 / 16] * 2


@looped(
    ("parametrization", "message"),
    [
        ("mup", "unknown parametrization; the only one is {type: mup, base: {d_model: 64}}"),
        ({"type": "mup"}, "needs base, the sizes of the base model"),
        ({"type": "mup", "base": {}}, "needs base"),
        ({"type": "mup", "base": {"d_model": 0}}, "expected a whole number from 1"),
        ({"type": "mup", "base": {"d_modle": 8}}, "Did you mean 'd_model'?"),
        ({"type": "mup", "base": {"d_model": 6}}, "4 heads do not divide d_model 6"),
        ({"type": "mup", "base": {"d_model": 8}, "depth_exponent": 2}, "expected a depth_exponent from 0.5 to 1"),
        ({"type": "mup", "base": {"d_model": 8}, "scheme": 3}, "scheme: unknown option; available: base"),
    ],
)
def test_what_is_wrong_is_told(parametrization: Any, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": parametrization}})
    assert message in str(refused.value)


@looped(
    ("model", "base", "message"),
    [
        ({"layer": {**MODEL["layer"], "attention": {"type": "linear", "num_heads": 4}}, "position": "learned"}, BASE,
         "attention 'linear' has no option `scale`"),
        ({"head": {"type": "masked_lm", "tied": True}, "type": "encoder"}, BASE, "head 'masked_lm' has no option"),
        ({"layer": {**MODEL["layer"], "residual": "deep_norm"}}, {"num_layers": 2}, "already scales with depth"),
        ({}, {"encoder.num_layers": 2}, "this model has one stack, the decoder; use num_layers"),
        ({"embedding": "tokens", "head": "language_model"}, {"d_model": 8, "embedding.d_embedding": 4},
         "the weight 'decoder.embedding.projection.bias' exists only in the base")
    ]
)  # fmt: skip
def test_a_part_that_cannot_follow_is_refused_by_name(model: dict[str, Any], base: Any, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(base, **model)
    assert message in str(refused.value)


@pytest.mark.parametrize("mixer", ["gru", "lstm", "rnn"])
def test_check_refuses_a_base_without_the_weights_of_the_model(mixer: str) -> None:
    layer = {"norm": "layer_norm", "mixer": {"type": mixer, "d_hidden": 8}, "feedforward": FF}
    chosen = {"layer": layer, "position": "none"}
    with pytest.raises(RecipeError) as refused:
        recipe(BASE, **chosen)
    assert "the weight 'decoder.layers.0.mixer.output.bias' exists only" in str(refused.value)
    assert recipe({**BASE, "layer.mixer.d_hidden": 4}, **chosen).blueprint()


def test_check_refuses_an_init_without_a_standard_deviation() -> None:
    @register("init", "ones")
    class Ones(Init):
        def embedding(self, weight: torch.Tensor) -> None:
            weight.fill_(1)

        linear = embedding

    assert recipe(None, init="ones").blueprint()
    with pytest.raises(RecipeError, match="init 'ones' does not implement std"):
        recipe(BASE, init="ones")


def test_a_weight_follows_the_width_of_its_own_stack() -> None:
    sides = {"encoder": {"num_layers": 1, "d_model": 64}, "decoder": {"num_layers": 1}}
    model = {**PAIR, **sides, "embedding": "tokens", "heads": {"more": {"type": "pooled", "reads": "encoder"}}}
    chosen = {"type": "mup", "base": {"d_model": 16, "encoder.d_model": 8}}
    found = groups(build_model(load_recipe({"tfkit": 1, "model": {**model, "parametrization": chosen}}).blueprint()))
    eps = {name: 1e-8 / factor[2] for name, factor in found.items()}
    assert eps["encoder.embedding.tokens.weight"] == pytest.approx(8)
    assert eps["encoder.layers.0.attention.query.weight"] == pytest.approx(8)
    assert eps["decoder.embedding.tokens.weight"] == pytest.approx(2)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    model = build_model(recipe(BASE).blueprint(), seed=0)
    with pytest.raises(UsageError, match="requires a variant of Adam, got SGD"):
        regroup(torch.optim.SGD(model.parameters(), lr=0.1), model, Train())


def test_check_refuses_another_optimizer() -> None:
    chosen = {"type": "mup", "base": BASE}
    sgd = {"optimizer": {"type": "torch", "name": "SGD"}}
    with pytest.raises(RecipeError, match="defines learning rates for Adam, not for SGD; use adam or adamw"):
        load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": chosen}, "train": sgd})
    adamax = {"optimizer": {"type": "torch", "name": "Adamax"}}
    assert load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": chosen}, "train": adamax}).blueprint()
