"""muP: nothing changes at the base size, and what follows from a larger one is what the papers' tables say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tfkit.contracts.options import VOCABULARY
from tfkit.contracts.parametrization import change_of, grown
from tfkit.core.errors import RecipeError, UsageError
from tfkit.models import build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.sections import Train
from tfkit.training.groups import regroup

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


@pytest.mark.parametrize("model", [MODEL, PAIR, KINDS], ids=["one stack", "two stacks", "kinds"])
def test_resolved_text_gives_the_same_model(model: dict[str, Any], tmp_path: Path) -> None:
    chosen = {"type": "mup", "base": {**BASE, "num_layers": 1}}
    base = chosen["base"] if "pattern" not in model else BASE
    source = load_recipe({"tfkit": 1, "model": {**model, "parametrization": {**chosen, "base": base}}})
    (tmp_path / "resolved.yaml").write_text(source.resolved())
    again = load_recipe(tmp_path / "resolved.yaml")
    assert again.blueprint() == source.blueprint()
    one, other = (build_model(found.blueprint(), seed=3) for found in (source, again))
    for (name, weight), same in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, same), name


@pytest.mark.parametrize(
    ("parametrization", "message"),
    [
        ("mup", "there is one parametrization besides the standard one: {type: mup, base: {d_model: 64}}"),
        ({"type": "mup"}, "needs base, the sizes at which nothing is changed"),
        ({"type": "mup", "base": {}}, "needs base"),
        ({"type": "mup", "base": {"d_model": 0}}, "a size of the base is a whole number from 1"),
        ({"type": "mup", "base": {"d_modle": 8}}, "Did you mean 'd_model'?"),
        ({"type": "mup", "base": {"d_model": 6}}, "4 heads do not divide d_model 6"),
        ({"type": "mup", "base": {"d_model": 8}, "depth_exponent": 2}, "depth_exponent is a number from 0.5 to 1"),
        ({"type": "mup", "base": {"d_model": 8}, "width": 3}, "width: unknown option; there are: base"),
    ],
)
def test_what_is_wrong_is_told(parametrization: Any, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": parametrization}})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("model", "base", "message"),
    [
        ({"layer": {**MODEL["layer"], "attention": {"type": "linear", "num_heads": 4}}, "position": "learned"}, BASE,
         "attention 'linear' has no option `scale`"),
        ({"head": {"type": "masked_lm", "tied": True}, "type": "encoder"}, BASE, "head 'masked_lm' has no option"),
        ({"layer": {**MODEL["layer"], "residual": "deep_norm"}}, {"num_layers": 2}, "'deep_norm' follows the depth"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_follow_is_refused_by_name(model: dict[str, Any], base: Any, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(base, **model)
    assert message in str(refused.value)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    model = build_model(recipe(BASE).blueprint(), seed=0)
    with pytest.raises(UsageError, match="rates are those of Adam, not of SGD"):
        regroup(torch.optim.SGD(model.parameters(), lr=0.1), model, Train())


def test_check_refuses_another_optimizer() -> None:
    chosen = {"type": "mup", "base": BASE}
    sgd = {"optimizer": {"type": "torch", "name": "SGD"}}
    with pytest.raises(RecipeError, match="gives the rates of Adam, not of SGD; take adam or adamw"):
        load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": chosen}, "train": sgd})
    adamax = {"optimizer": {"type": "torch", "name": "Adamax"}}
    assert load_recipe({"tfkit": 1, "model": {**MODEL, "parametrization": chosen}, "train": adamax}).blueprint()
