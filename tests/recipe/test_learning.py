"""What a recipe describes can learn: every parameter has a gradient, or the recipe is refused, or warned of by name.

The same recipes are drawn every time. For others:
LEARN_SEED=7 LEARN_DRAWN=5000 pytest -m slow tests/recipe/test_learning.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.errors import RecipeError
from tfkit.core.plugins import is_shipped
from tfkit.core.registry import REGISTRY, register
from tfkit.models.base import Model
from tfkit.models.encoder_decoder import EncoderDecoder
from tfkit.recipe.load import Recipe, load_recipe, load_saved
from tfkit.recipe.model import blueprint_of

from ..sampling import each
from ..shipped import NAMES, shipped
from .fuzz.drawn import drawn
from .fuzz.learning import dead
from .fuzz.tree import flow, plain, planted

FEW, MANY = 50, int(os.environ.get("LEARN_DRAWN", 2_000))
SEED = os.environ.get("LEARN_SEED", "0")
SLOTS = ("attention", "mixer", "feedforward", "norm", "residual", "position", "embedding", "head", "mask")


# ------------------------------------------------------------------------------------------------------ drawn recipes


def accepted(count: int) -> Iterator[tuple[str, Recipe]]:
    """The drawn recipes that are accepted, each with its text."""
    for number in range(count):
        tree = drawn(Random(f"{SEED}-{number}"))
        try:
            yield flow(tree), load_recipe(plain(tree))
        except RecipeError:
            continue


def loses_rank(blueprint: Blueprint) -> bool:
    """Whether tokens become alike doubly exponentially with depth: attention without a residual connection.

    Their gradients are not zero, but float64 cannot tell them from zero (Dong et al. 2021, arXiv 2103.03404).
    """
    layers = [plan.layers[kind] for plan in blueprint.stacks() for kind in plan.order]
    bare = [layer for layer in layers if layer.residual.part.part_name == "plain" and layer.norm is None]
    return sum(any(sub.config.part.part_slot == "attention" for sub in layer.sublayers) for layer in bare) > 2


def hold(text: str, recipe: Recipe) -> None:
    """Everything learns, or something that does not is told."""
    if not recipe.warnings and not loses_rank(recipe.blueprint()):
        assert not dead(recipe.blueprint()), text


def parts(blueprint: Blueprint) -> Iterator[Config]:
    yield from (config for plan in blueprint.stacks() for config in plan.parts())
    ends = [end for plan in blueprint.stacks() for end in (plan.embedding, plan.final_norm)]
    yield from (config for config in (*ends, blueprint.head) if config is not None)


@pytest.mark.full
def test_in_a_few_drawn_recipes_every_parameter_can_learn():
    found = list(accepted(FEW))
    assert len(found) > FEW // 4
    for text, recipe in found:
        hold(text, recipe)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_in_many_drawn_recipes_every_parameter_can_learn():
    met: set[tuple[str, str]] = set()
    idle: list[str] = []  # warnings of what does learn
    for text, recipe in accepted(MANY):
        hold(text, recipe)
        met |= {(config.part.part_slot, config.part.part_name) for config in parts(recipe.blueprint())}
        words = " ".join(warning.message for warning in recipe.warnings)
        # texts of one token are told of parts without weights too, an idle router may have auxiliary losses
        if words and "texts of one token" not in words and "router" not in words:
            idle += [] if dead(recipe.blueprint(), tries=4) else [f"{words}\n{text}"]
    shipped = {(slot, name) for slot in SLOTS for name, part in REGISTRY.load(slot).items() if is_shipped(part)}
    assert shipped <= met  # the draw is over the whole language
    assert not idle, "\n".join(["warned of, and everything learns:", *idle])


def test_what_cannot_learn_is_found():
    """The measure itself: weights that a zero shuts out, and weights that a gate shuts out only at first."""
    recipe = load_recipe(small())
    assert dead(recipe.blueprint()) == []

    @register("feedforward", "shut")
    class Shut(REGISTRY.get("feedforward", "mlp")):  # type: ignore[misc]
        def forward(self, x: Any, context: Any) -> Any:
            return 0 * super().forward(x, context)

    @register("feedforward", "gated")
    class Gated(REGISTRY.get("feedforward", "mlp")):  # type: ignore[misc]
        def __init__(self, config: Config, shape: Any) -> None:
            super().__init__(config, shape)
            self.gate = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x: Any, context: Any) -> Any:
            return self.gate * super().forward(x, context)

    shut = load_recipe(small(layer={"feedforward": {"type": "shut", "d_ff": 4}})).blueprint()
    weights = [f"feedforward.{side}.{kind}" for side in ("down", "up") for kind in ("bias", "weight")]
    weights += ["feedforward_norm.bias", "feedforward_norm.weight"]
    assert dead(shut) == [f"decoder.layers.{layer}.{weight}" for layer in (0, 1) for weight in weights]
    assert dead(load_recipe(small(layer={"feedforward": {"type": "gated", "d_ff": 4}})).blueprint()) == []


# ----------------------------------------------------------------------------------------------------- one by one


def small(layer: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """A small decoder; `layer` and `model` change it."""
    parts: dict[str, Any] = {"residual": "pre_norm", "norm": "layer_norm"}
    parts |= {"attention": {"type": "multi_head", "num_heads": 2}, "feedforward": {"type": "mlp", "d_ff": 16}}
    keys = {"type": "decoder", "d_model": 8, "vocab_size": 20, "num_layers": 2, "embedding": "tokens"}
    return {"tfkit": 1, "model": {**keys, "layer": parts | (layer or {}), "head": "language_model", **model}}


def faults(recipe: dict[str, Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe)
    return [f"{fault.path}: {fault.message}" for fault in caught.value.faults]


def warned(recipe: dict[str, Any]) -> list[str]:
    """The warnings, of which each names something that cannot learn."""
    loaded = load_recipe(recipe)
    assert dead(loaded.blueprint(), tries=6)
    return [f"{warning.path}: {warning.message}" for warning in loaded.warnings]


def quiet(recipe: dict[str, Any]) -> bool:
    loaded = load_recipe(recipe)
    return not loaded.warnings and not dead(loaded.blueprint())


NORMS = {
    "layer_norm": "'layer_norm' of {} channel{} keeps only {}, so nothing before it learns; use at least 3 channels",
    "rms_norm": "'rms_norm' of {} channel{} keeps only {}, so nothing before it learns; use at least 2 channels",
}


@pytest.mark.parametrize(
    ("norm", "size", "leaves"),
    [("layer_norm", 1, "its bias"), ("layer_norm", 2, "which channel is larger"), ("rms_norm", 1, "the sign")],
)
def test_a_norm_of_too_few_channels(norm, size, leaves):
    text = NORMS[norm].format(size, "s" * (size > 1), leaves)
    assert faults(small({"norm": {"type": norm, "group_size": size}})) == [f"model.layer.norm.group_size: {text}"]
    attention = {"type": "multi_head", "num_heads": 2, "head_dim": size, "qk_norm": norm}
    assert faults(small({"attention": attention})) == [f"model.layer.attention.qk_norm: {text}"]
    assert faults(small({"norm": norm}, final_norm="none", d_model=size)) != []
    attention |= {"head_dim": size + 1 + (size == 1 and norm == "layer_norm")}
    assert quiet(small({"attention": attention, "norm": norm}))


def test_a_tied_heads_norm_has_the_width_of_the_table():
    embedding = {"type": "tokens", "d_embedding": 2}
    head = {"type": "masked_lm", "tied": True}
    text = NORMS["layer_norm"].format(2, "s", "which channel is larger")
    model = small(type="encoder", embedding=embedding, head=head | {"norm": "layer_norm"})
    assert faults(model) == [f"model.head.norm: {text}"]
    assert load_recipe(small(type="encoder", embedding=embedding, head=head | {"norm": "none"}))


def experts(**options: Any) -> dict[str, Any]:
    expert = {"type": "mlp", "d_ff": 4}
    return {"feedforward": {"type": "experts", "num_experts": 4, "num_active": 1, "expert": expert} | options}


ONE = "the weight of the one chosen expert is always 1, so the router"


@pytest.mark.parametrize("router", [{"over": "chosen"}, {"normalized": True}, {"type": "sigmoid", "normalized": True}])
def test_a_router_of_one_expert_that_never_learns(router):
    (option,) = [key for key in router if key != "type"]
    way = f"remove {option}, or increase num_active"
    place = f"model.layer.feedforward.router.{option}"
    recipe = experts(router={"type": "softmax"} | router)
    assert faults(small(recipe)) == [f"{place}: {ONE} never learns; {way}"]
    assert quiet(small(experts(num_active=2, router={"type": "softmax"} | router)))
    losses = experts(router={"type": "softmax", "balance_loss": 0.1} | router)
    (found,) = load_recipe(small(losses)).warnings
    assert (found.path, found.message) == (place, f"{ONE} learns only from its auxiliary losses")


def test_a_router_of_one_expert_that_learns():
    assert quiet(small(experts()))
    assert quiet(small(experts(router="sigmoid")))


def test_the_only_expert_is_a_baseline():
    text = "the weight of the only expert is always 1, so the router has no effect"
    assert warned(small(experts(num_experts=1))) == [f"model.layer.feedforward.num_experts: {text}"]
    assert quiet(small(experts(num_experts=1, router="sigmoid")))


ALONE = "each token sees only itself, so the queries and keys of attention never learn"


def test_a_token_that_sees_only_itself():
    def check(changes):
        assert warned(small(**changes)) == [f"model.mask: {ALONE}"]

    cases = [
        {"mask": {"type": "window", "size": 1}},
        {"mask": {"type": "window", "size": 1}, "type": "encoder"},
        {"mask": {"type": "window", "before": 0}},
        {"mask": {"type": "chunk", "size": 1}},
        {"mask": {"type": "dilated", "dilation": 40}, "max_length": 30},
        {"mask": {"type": "dilated", "dilation": 2**31}, "type": "encoder"},
    ]
    each(cases, check)
    text = "with both causal and reverse_causal in a layer, each token sees only itself"
    assert faults(small(mask="reverse_causal")) == [f"model.mask: {text}"]


def test_masks_that_together_leave_only_the_token():
    masks = [{"type": "window", "size": 3}, {"type": "dilated", "dilation": 4}]
    assert warned(small(mask=masks)) == [f"model.mask[1]: {ALONE}"]
    kinds = {"near": {"mask": masks[1]}, "far": {}}
    model = small(mask=masks[0], layers=kinds, pattern=["near", "far"])
    assert warned(model) == [f"model.layers.near.mask: {ALONE}"]


def test_a_token_that_sees_another():
    def check(mask):
        assert load_recipe(small(mask=mask)).warnings == ()

    cases = [
        {"type": "window", "size": 2},
        {"type": "chunk", "size": 2},
        [{"type": "window", "size": 1}, "prefix"],
        [{"type": "window", "size": 5}, {"type": "dilated", "dilation": 4}],
        {"type": "dilated", "dilation": 1000},
    ]
    each(cases, check)


def test_a_sink_is_another_choice():
    attention = {"type": "multi_head", "num_heads": 2, "sinks": True}
    assert quiet(small({"attention": attention}, mask={"type": "window", "size": 1}))


def test_a_layer_without_attention_may_have_any_window():
    kinds = {"a": {"attention": "none", "mask": {"type": "window", "size": 1}}, "b": {}}
    assert quiet(small(layers=kinds, pattern=["a", "b"]))


SHORT = "texts have a single token, so attention and recurrences have nothing to learn"


def test_texts_of_one_token():
    assert warned(small(max_length=1)) == [f"model.max_length: {SHORT}"]
    assert warned(small(position={"type": "learned", "max_length": 1})) == [f"model.position: {SHORT}"]
    recurrent = small({"attention": "none", "mixer": "gru"}, max_length=1)
    assert warned(recurrent) == [f"model.max_length: {SHORT}"]
    sides = {"type": "encoder_decoder", "encoder": {"max_length": 1}}
    assert warned(small(**sides)) == [f"model.encoder.max_length: {SHORT}"]
    assert quiet(small({"attention": "none"}, max_length=1))


def test_a_scale_of_nothing():
    text = "expected a number other than 0 or 'sqrt_d_model' or '1/sqrt_d_model'"
    for path, recipe in {
        "model.embedding.scale": small(embedding={"type": "tokens", "scale": 0.0}),
        "model.layer.attention.scale": small({"attention": {"type": "multi_head", "num_heads": 2, "scale": 0}}),
        "model.head.scale": small(head={"type": "language_model", "scale": 0.0}),
    }.items():
        (found,) = faults(recipe)
        assert found.startswith(f"{path}: {text}")


def test_features_that_cancel_out():
    text = "with a single feature, the queries cancel out and are never trained; use more features"
    for attention in (
        {"type": "linear", "num_heads": 8},
        {"type": "performer", "num_heads": 8},
        {"type": "performer", "num_heads": 2, "features": 1},
    ):
        assert faults(small({"attention": attention})) == [f"model.layer.attention: {text}"]
    assert quiet(small({"attention": {"type": "linear", "num_heads": 4}}))


def test_a_vector_of_one_number_has_no_length_but_one():
    head = {"type": "pooled", "normalized": True, "pool": "mean"}
    text = "a normalized vector of width 1 is 1 or -1, so nothing is learned; use a larger width"
    assert faults(small(head=head | {"d_output": 1})) == [f"model.head.d_output: {text}"]
    assert quiet(small(head=head | {"d_output": 2}))


# ------------------------------------------------------------------------------------------------------ what heads read


@pytest.mark.parametrize("head", [{"type": "classifier", "num_classes": 3}, {"type": "regression"}, {"type": "pooled"}])
def test_the_first_token_of_a_causal_stack_has_seen_nothing(head):
    text = "the first token sees nothing after it in this decoder; use pool: last, or mean"
    assert faults(small(head=head)) == [f"model.head: {text}"]
    assert faults(small(head=head | {"pool": "first"})) == [f"model.head.pool: {text}"]
    assert faults(small(heads={"more": head})) == [f"model.heads.more: {text}"]
    assert faults(small(type="encoder", mask="causal", head=head)) == [
        f"model.head: {text.replace('decoder', 'encoder')}"
    ]
    for pool in ("last", "mean"):
        assert quiet(small(head=head | {"pool": pool}))
    assert quiet(small(type="encoder", head=head))
    assert quiet(small(mask="prefix", head=head))


def test_the_last_token_of_a_stack_that_reads_backwards_has_seen_nothing():
    head = {"type": "regression", "pool": "last"}
    text = "the last token sees nothing before it in this encoder; use pool: first, or mean"
    assert faults(small(type="encoder", mask="reverse_causal", head=head)) == [f"model.head.pool: {text}"]
    kinds = {"forth": {"mask": "causal"}, "back": {"mask": "reverse_causal"}}
    assert quiet(small(type="encoder", layers=kinds, pattern=["back", "forth"], head=head))
    text = "the last token sees nothing before it in the last layer, whose queries and keys never learn"
    model = small(type="encoder", layers=kinds, pattern=["forth", "back"], head=head)
    assert warned(model) == [f"model.head.pool: {text}; use pool: first, or mean"]
    model = small(type="encoder", layers=kinds, pattern=["forth", "back*2"], num_layers=3, head=head)
    assert warned(model) == [f"model.head.pool: {text.replace('layer', '2 layers')}; use pool: first, or mean"]
    assert quiet(small(type="encoder", layers=kinds, pattern=["forth", "back"], heads={"more": head}))


def test_one_layer_that_sees_both_ways_is_enough():
    kinds = {"causal": {"mask": "causal"}, "both": {}}
    assert quiet(small(type="encoder", layers=kinds, pattern=["causal", "both"], head={"type": "regression"}))


def test_half_of_the_last_recurrence_has_read_nothing():
    layer = {"attention": "none", "mixer": "lstm"}
    text = "at the first token, one direction of the last recurrence has read no other token"
    text += ", so its recurrent weights never learn"
    model = small(layer, type="encoder", head={"type": "regression"})
    assert warned(model) == [f"model.head: {text}; use pool: mean"]
    model = small(layer, type="encoder", head={"type": "regression", "pool": "last"})
    assert warned(model) == [f"model.head.pool: {text.replace('first', 'last')}; use pool: mean"]
    assert quiet(small(layer, type="encoder", head={"type": "regression", "pool": "mean"}))
    assert quiet(small(layer, type="encoder", heads={"more": {"type": "regression"}}))
    assert quiet(small(layer, type="encoder", head="none", heads={"more": {"type": "regression"}}))
    assert quiet(small(layer | {"shared": True}, type="encoder", head={"type": "regression"}))
    assert quiet(small(layer, type="encoder", head={"type": "pooled", "pool": "last", "until": 3}))


def test_a_decoder_that_no_head_reads():
    text = "no head reads the decoder, which therefore never learns"
    head = {"type": "regression", "reads": "encoder"}
    assert warned(small(type="encoder_decoder", head=head)) == [f"model.head.reads: {text}"]
    assert quiet(small(type="encoder_decoder", heads={"more": head}))
    assert load_recipe(small(type="encoder_decoder", head="none", heads={"more": head})).warnings == ()


# ------------------------------------------------------------------------------------------- weights that exist already


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "encoder_decoder", "layer": {"attention": None}},
        {"layer": {"norm": {"type": "layer_norm", "group_size": 1}}},
        {"layer": {"attention": {"type": "linear", "num_heads": 8}}},
        {"head": {"type": "regression"}},
        {"head": {"type": "pooled", "pool": "mean", "d_output": 1, "normalized": True}},
        {"layer": {"feedforward": {"type": "experts", "num_experts": 2, "num_active": 1}}},
    ],
    ids=["memory", "norm", "features", "first", "length", "router"],
)
def test_a_model_that_was_trained_elsewhere_may_still_be_used(tmp_path, changes):
    if "feedforward" in changes.get("layer", {}):
        changes["layer"]["feedforward"] |= {"expert": {"type": "mlp", "d_ff": 4}, "router": {"normalized": True}}
        changes["layer"]["feedforward"]["router"]["type"] = "softmax"
    recipe = small(**changes)
    (fault,) = dict.fromkeys(faults(recipe))
    file = tmp_path / "resolved.yaml"
    file.write_text(flow(planted(recipe)))
    loaded = load_saved(file)
    assert [f"{warning.path}: {warning.message}" for warning in loaded.warnings] == [fault]
    assert loaded.blueprint() == blueprint_of(recipe["model"])


# ----------------------------------------------------------------------------------------------------------- a memory

WRITE = "cross_attention: {type: multi_head, num_heads: 8}"
UNREAD = "no layer of the decoder reads the encoder, which therefore never learns; set " + WRITE


def test_a_decoder_reads_its_encoder():
    none = f"{UNREAD} in the layer (it has no attention to copy)"
    without = {"attention": "none", "mixer": "lstm"}
    model = {"type": "encoder_decoder"}
    assert faults(small(without, **model)) == [f"model.layer.attention: {none}"]
    taken_out = f"{UNREAD}, or remove it to copy the layer's attention"
    assert faults(small({"cross_attention": "none"}, **model)) == [f"model.layer.cross_attention: {taken_out}"]
    side = {"decoder": {"layer": {"cross_attention": "none"}}}
    assert faults(small(**model, **side)) == [f"model.decoder.layer.cross_attention: {taken_out}"]
    kinds = {"a": {"cross_attention": "none"}, "b": {"cross_attention": "none"}}
    assert faults(small(**model, layers=kinds, pattern=["a", "b"])) == [f"model.layers.a.cross_attention: {taken_out}"]
    bare = small(**model)
    del bare["model"]["layer"]["attention"]
    assert faults(bare) == [f"model.layer: {none}"]


def test_a_misspelled_attention_is_the_only_fault():
    bare = small(type="encoder_decoder")
    layer = bare["model"]["layer"]
    layer["atention"] = layer.pop("attention")
    (found,) = faults(bare)
    assert found.startswith("model.layer.atention: unknown option")


def test_what_is_said_of_it_helps():
    cross = {"cross_attention": {"type": "multi_head", "num_heads": 8}}
    for layer in ({}, {"attention": "none", "mixer": "lstm"}):
        assert quiet(small(layer | cross, type="encoder_decoder"))
        assert quiet(small(layer, type="encoder_decoder", decoder={"layer": cross}))


def test_one_layer_of_a_decoder_reads_for_all():
    kinds = {"alone": {"cross_attention": "none"}, "reads": {}}
    assert quiet(small(type="encoder_decoder", layers=kinds, pattern=["alone", "reads"]))


def test_a_memory_from_outside_is_read():
    text = f"no layer of the decoder reads this memory; set {WRITE}"
    memory = {"memory": {"d_model": 6}}
    assert quiet(small(**memory))
    assert faults(small({"cross_attention": "none"}, **memory))[0].startswith(f"model.memory: {text}")
    assert faults(small({"attention": "none"}, **memory))[0].startswith(f"model.memory: {text}")


def test_the_number_of_heads_that_is_proposed_divides_the_width():
    (found,) = faults(small({"cross_attention": "none"}, type="encoder_decoder", d_model=6))
    assert "num_heads: 2}" in found


def test_a_type_of_ones_own_may_join_its_stacks_otherwise(tmp_path):
    @register("model", "joined")
    class Joined(EncoderDecoder):
        joined_by_cross_attention = False

    recipe = load_recipe(small({"cross_attention": "none"}, type="joined"))
    path = tmp_path / "resolved.yaml"
    path.write_text(recipe.resolved(), encoding="utf-8")
    assert load_recipe(path).blueprint() == recipe.blueprint()
    assert Model.joined_by_cross_attention


def test_no_shipped_recipe_is_warned_of():
    def check(name):
        assert shipped(name).warnings == ()

    each(NAMES, check)
