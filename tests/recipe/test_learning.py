"""What a recipe describes can learn: every parameter has a gradient, or the recipe is refused, or warned of by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tfkit.core.component import Config
from tfkit.core.registry import REGISTRY, register
from tfkit.models.base import Model
from tfkit.models.single import EncoderDecoder
from tfkit.recipe.load import load_recipe, load_saved
from tfkit.recipe.model import blueprint_of

from ..sampling import looped
from .fuzz.learning import dead
from .fuzz.tree import flow, planted
from .small import GONE, HEADS, faults, read_again, small, warned

ENCODER, PAIR = {"type": "encoder"}, {"type": "encoder_decoder"}
REGRESSION = {"type": "regression"}
GRU, LSTM = {"attention": "none", "mixer": "gru"}, {"attention": "none", "mixer": "lstm"}


def quiet(recipe: dict[str, Any]) -> bool:
    loaded = load_recipe(recipe)
    return not loaded.warnings and not dead(loaded.blueprint())


def experts(**options: Any) -> dict[str, Any]:
    expert = {"type": "mlp", "d_ff": 4}
    return {"feedforward": {"type": "experts", "num_experts": 4, "num_active": 1, "expert": expert} | options}


def kinds(pattern: list[str], **named: dict[str, Any]) -> dict[str, Any]:
    return {"layers": named, "pattern": pattern}


def test_what_cannot_learn_is_found():
    """The measure itself: weights that a zero shuts out, and weights that a gate shuts out only at first."""

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

    weights = [f"feedforward.{side}.{kind}" for side in ("down", "up") for kind in ("bias", "weight")]
    weights += ["feedforward_norm.bias", "feedforward_norm.weight"]
    shut = [f"decoder.layers.{layer}.{weight}" for layer in (0, 1) for weight in weights]
    for part, expected in (("mlp", []), ("gated", []), ("shut", shut)):
        assert dead(load_recipe(small({"feedforward": {"type": part, "d_ff": 4}})).blueprint()) == expected


CANCEL = "model.layer.attention: with a single feature, the queries cancel out and are never trained; use more features"
NOT_ZERO = "expected a number other than 0 or 'sqrt_d_model' or '1/sqrt_d_model'"
ONE = "the weight of the one chosen expert is always 1, so the router"
FIRST = "the first token sees nothing after it in this decoder; use pool: last, or mean"
CROSS_HEADS = "cross_attention: {type: multi_head, num_heads:"
UNREAD = f"no layer of the decoder reads the encoder, which therefore never learns; set {CROSS_HEADS}"
NONE = f"{UNREAD} 8}} in the layer (it has no attention to copy)"
TAKEN = f"{UNREAD} 8}}, or remove it to copy the layer's attention"
MEMORY = "model.memory: no layer of the decoder reads this memory; set cross_attention: {type: multi_head, num_heads: 8"
NO_CROSS: dict[str, Any] = {"cross_attention": "none"}
NORMED = [
    (norm, size, f"'{norm}' of {size} channel{'s' * (size > 1)} keeps only {keeps}, so nothing before it learns; use a")
    for norm, size, keeps in (
        ("layer_norm", 1, "its bias"),
        ("layer_norm", 2, "which channel is larger"),
        ("rms_norm", 1, "the sign"),
    )
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *((f"model.layer.norm.group_size: {text}", small({"norm": {"type": norm, "group_size": size}}))
      for norm, size, text in NORMED),
    *((f"model.layer.attention.qk_norm: {text}", small({"attention": HEADS | {"head_dim": size, "qk_norm": norm}}))
      for norm, size, text in NORMED),
    (f"model.head.norm: {NORMED[1][2]}",  # a tied head's norm has the width of the table
     small(**ENCODER, embedding={"type": "tokens", "d_embedding": 2},
           head={"type": "masked_lm", "tied": True, "norm": "layer_norm"})),
    *((f"model.layer.feedforward.router.{option}: {ONE} never learns; remove {option}, or increase num_active",
       small(experts(router={"type": type, option: value})))
      for type, option, value in (
          ("softmax", "over", "chosen"), ("softmax", "normalized", True), ("sigmoid", "normalized", True))),
    (f"model.embedding.scale: {NOT_ZERO}", small(embedding={"type": "tokens", "scale": 0.0})),
    (f"model.layer.attention.scale: {NOT_ZERO}", small({"attention": HEADS | {"scale": 0}})),
    (f"model.head.scale: {NOT_ZERO}", small(head={"type": "language_model", "scale": 0.0})),
    (CANCEL, small({"attention": {"type": "linear", "num_heads": 8}})),
    (CANCEL, small({"attention": {"type": "performer", "num_heads": 8}})),
    (CANCEL, small({"attention": {"type": "performer", "num_heads": 2, "features": 1}})),
    ("model.head.d_output: a normalized vector of width 1 is 1 or -1, so nothing is learned; use a larger width",
     small(head={"type": "pooled", "normalized": True, "pool": "mean", "d_output": 1})),
    # what heads read
    *((f"model.head: {FIRST}", small(head=head)) for head in ("regression", "pooled")),
    (f"model.head.pool: {FIRST}", small(head={"type": "classifier", "num_classes": 3, "pool": "first"})),
    (f"model.heads.more: {FIRST}", small(heads={"more": REGRESSION})),
    (f"model.head: {FIRST.replace('decoder', 'encoder')}", small(**ENCODER, mask="causal", head=REGRESSION)),
    ("model.head.pool: the last token sees nothing before it in this encoder; use pool: first, or mean",
     small(**ENCODER, mask="reverse_causal", head=REGRESSION | {"pool": "last"})),
    # a memory
    (f"model.layer.attention: {NONE}", small(LSTM, **PAIR)),
    (f"model.layer: {NONE}", small({"attention": GONE}, **PAIR)),
    (f"model.layer.cross_attention: {TAKEN}", small(NO_CROSS, **PAIR)),
    (f"model.decoder.layer.cross_attention: {TAKEN}", small(**PAIR, decoder={"layer": NO_CROSS})),
    (f"model.layers.a.cross_attention: {TAKEN}", small(**PAIR, **kinds(["a", "b"], a=NO_CROSS, b=NO_CROSS))),
    (f"model.layer.cross_attention: {UNREAD} 2}}", small(NO_CROSS, **PAIR, d_model=6)),  # which divides 6
    ("model.layer.atention: unknown option", small({"attention": GONE, "atention": HEADS}, **PAIR)),
    (MEMORY, small(NO_CROSS, memory={"d_model": 6})),
    (MEMORY, small({"attention": "none"}, memory={"d_model": 6})),
]  # fmt: skip


@looped(("expected", "recipe"), REFUSED)
def test_what_never_learns_is_refused(expected, recipe):
    (fault,) = dict.fromkeys(faults(recipe))
    assert fault.startswith(expected), fault


@pytest.mark.parametrize(("norm", "size"), [(norm, size) for norm, size, _ in NORMED])
def test_a_norm_of_a_few_more_channels_learns(norm, size):
    assert faults(small({"norm": norm}, final_norm="none", d_model=size)) != []
    enough = size + 1 + (size == 1 and norm == "layer_norm")
    assert quiet(small({"attention": HEADS | {"head_dim": enough, "qk_norm": norm}, "norm": norm}))


ALONE = "each token sees only itself, so the queries and keys of attention never learn"
SHORT = "texts have a single token, so attention and recurrences have nothing to learn"
BACKWARDS = "model.head.pool: the last token sees nothing before it in the last {}, whose queries and keys never learn;"
HALF = ": at the {} token, one direction of the last recurrence has read no other token, so its recurrent weights never"
DILATED = {"type": "dilated", "dilation": 4}
ITSELF = {"type": "window", "size": 1}
LAST: dict[str, Any] = ENCODER | {"head": REGRESSION | {"pool": "last"}}
FORTH: dict[str, Any] = {"forth": {"mask": "causal"}, "back": {"mask": "reverse_causal"}}
WARNED: list[tuple[str, dict[str, Any]]] = [
    ("model.layer.feedforward.num_experts: the weight of the only expert is always 1, so the router has no effect",
     small(experts(num_experts=1))),
    (f"model.mask: {ALONE}", small(mask=ITSELF)),
    (f"model.mask: {ALONE}", small(**ENCODER, mask=ITSELF)),
    (f"model.mask: {ALONE}", small(mask={"type": "window", "before": 0})),
    (f"model.mask: {ALONE}", small(mask={"type": "chunk", "size": 1})),
    (f"model.mask: {ALONE}", small(mask={"type": "dilated", "dilation": 40}, max_length=30)),
    (f"model.mask: {ALONE}", small(mask={"type": "dilated", "dilation": 2**31}, type="encoder")),
    (f"model.mask[1]: {ALONE}", small(mask=[{"type": "window", "size": 3}, DILATED])),
    (f"model.layers.near.mask: {ALONE}",
     small(mask={"type": "window", "size": 3}, **kinds(["near", "far"], near={"mask": DILATED}, far={}))),
    (f"model.max_length: {SHORT}", small(max_length=1)),
    (f"model.position: {SHORT}", small(position={"type": "learned", "max_length": 1})),
    (f"model.max_length: {SHORT}", small(GRU, max_length=1)),
    (f"model.encoder.max_length: {SHORT}", small(**PAIR, encoder={"max_length": 1})),
    (BACKWARDS.format("layer"), small(**LAST, **kinds(["forth", "back"], **FORTH))),
    (BACKWARDS.format("2 layers"), small(**LAST, **kinds(["forth", "back*2"], **FORTH), num_layers=3)),
    (f"model.head{HALF.format('first')}", small(LSTM, **ENCODER, head=REGRESSION)),
    (f"model.head.pool{HALF.format('last')}", small(LSTM, **LAST)),
    ("model.head.reads: no head reads the decoder, which therefore never learns",
     small(**PAIR, head=REGRESSION | {"reads": "encoder"})),
]  # fmt: skip


@looped(("expected", "recipe"), WARNED)
def test_what_cannot_learn_is_warned_of(expected, recipe):
    loaded = load_recipe(recipe)
    (warning,) = warned(loaded)
    assert warning.startswith(expected) and dead(loaded.blueprint(), tries=6)


CROSS = {"cross_attention": {"type": "multi_head", "num_heads": 8}}
QUIET: list[dict[str, Any]] = [
    small(experts()),
    small(experts(router="sigmoid")),
    small(experts(num_experts=1, router="sigmoid")),
    small(experts(num_active=2, router={"type": "softmax", "over": "chosen"})),
    small(experts(num_active=2, router={"type": "softmax", "normalized": True})),
    small({"attention": HEADS | {"sinks": True}}, mask=ITSELF),  # a sink is another choice
    small(**kinds(["a", "b"], a={"attention": "none", "mask": ITSELF}, b={})),
    small({"attention": "none"}, max_length=1),
    small({"attention": {"type": "linear", "num_heads": 4}}),
    small(head={"type": "pooled", "normalized": True, "pool": "mean", "d_output": 2}),
    *(small(head=REGRESSION | {"pool": pool}) for pool in ("last", "mean")),
    small(**ENCODER, head={"type": "classifier", "num_classes": 3}),
    small(mask="prefix", head=REGRESSION),
    small(**LAST, **kinds(["back", "forth"], **FORTH)),
    small(**ENCODER, **kinds(["forth", "back"], **FORTH), heads={"more": REGRESSION | {"pool": "last"}}),
    small(**ENCODER, **kinds(["causal", "both"], causal={"mask": "causal"}, both={}), head=REGRESSION),
    small(LSTM, **ENCODER, head=REGRESSION | {"pool": "mean"}),
    small(LSTM, **ENCODER, heads={"more": REGRESSION}),
    small(LSTM, **ENCODER, head="none", heads={"more": REGRESSION}),
    small(LSTM | {"shared": True}, **ENCODER, head=REGRESSION),
    small(LSTM, **ENCODER, head={"type": "pooled", "pool": "last", "until": 3}),
    small(**PAIR, heads={"more": REGRESSION | {"reads": "encoder"}}),
    *(small(layer | CROSS, **PAIR) for layer in ({}, LSTM)),
    *(small(layer, **PAIR, decoder={"layer": CROSS}) for layer in ({}, LSTM)),
    small(**PAIR, **kinds(["alone", "reads"], alone=NO_CROSS, reads={})),
    small(memory={"d_model": 6}),
]  # fmt: skip


@looped("recipe", QUIET)
def test_what_learns_is_accepted_without_a_warning(recipe):
    assert quiet(recipe)


@looped(
    "model",
    [
        {"mask": {"type": "window", "size": 2}},
        {"mask": {"type": "chunk", "size": 2}},
        {"mask": [ITSELF, "prefix"]},
        {"mask": [{"type": "window", "size": 5}, DILATED]},
        {"mask": {"type": "dilated", "dilation": 1000}},
        {"type": "encoder_decoder", "head": "none", "heads": {"more": REGRESSION | {"reads": "encoder"}}},
        ENCODER | {"embedding": {"type": "tokens", "d_embedding": 2}, "head": {"type": "masked_lm", "norm": "none"}},
    ],
)
def test_no_warning(model):
    assert load_recipe(small(**model)).warnings == ()


def test_a_router_may_learn_from_its_auxiliary_losses():
    router = {"type": "softmax", "normalized": True, "balance_loss": 0.1}
    place = "model.layer.feedforward.router.normalized"
    assert warned(load_recipe(small(experts(router=router)))) == [
        f"{place}: {ONE} learns only from its auxiliary losses"
    ]


@pytest.mark.parametrize(
    "recipe",
    [
        small({"attention": None}, **PAIR),
        small({"norm": {"type": "layer_norm", "group_size": 1}}),
        small({"attention": {"type": "linear", "num_heads": 8}}),
        small(head=REGRESSION),
        small(head={"type": "pooled", "pool": "mean", "d_output": 1, "normalized": True}),
        small(experts(num_experts=2, router={"type": "softmax", "normalized": True})),
    ],
    ids=["memory", "norm", "features", "first", "length", "router"],
)
def test_a_model_that_was_trained_elsewhere_may_still_be_used(tmp_path, recipe):
    (fault,) = dict.fromkeys(faults(recipe))
    file = tmp_path / "resolved.yaml"
    file.write_text(flow(planted(recipe)))
    loaded = load_saved(file)
    assert warned(loaded) == [fault]
    assert loaded.blueprint() == blueprint_of(recipe["model"])


def test_a_type_of_ones_own_may_join_its_stacks_otherwise():
    @register("model", "joined")
    class Joined(EncoderDecoder):
        joined_by_cross_attention = False

    recipe = load_recipe(small(NO_CROSS, type="joined"))
    assert read_again(recipe).blueprint() == recipe.blueprint()
    assert Model.joined_by_cross_attention
