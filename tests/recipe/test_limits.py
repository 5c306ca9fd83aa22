"""The least recipes of what broken ones have found: bounds on what a recipe costs, and messages that stay readable."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tfkit.core.errors import RecipeError
from tfkit.models.build import build_model
from tfkit.recipe.architecture.pattern import MAX_LAYERS
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count_parameters

from ..sampling import looped


def recipe(layer: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """A small decoder; `layer` and `model` change it."""
    small = {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 2}}
    small |= {"feedforward": {"type": "mlp", "d_ff": 4}}
    sizes = {"type": "decoder", "d_model": 8, "vocab_size": 20, "num_layers": 2, "embedding": "tokens"}
    return {"tfkit": 1, "model": {**sizes, "layer": {**small, **(layer or {})}, "head": "language_model", **model}}


def said(mapping: dict[str, Any], **how: Any) -> list[str]:
    """The faults as they are printed."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(mapping, **how)
    return str(caught.value).splitlines()


def again(tmp_path: Any, loaded: Recipe) -> Recipe:
    """The recipe that the resolved text is."""
    path = tmp_path / "resolved.yaml"
    path.write_text(loaded.resolved(), encoding="utf-8")
    return load_recipe(path)


def d_ff(*widths: int) -> dict[str, Any]:
    return {"feedforward": {"type": "mlp", "d_ff": {"per_layer": list(widths)}}}


# ------------------------------------------------------------------------------------------------------------ per_layer


def test_a_list_of_the_wrong_length_is_told_once_however_many_layers_there_are():
    start = time.thread_time()
    assert said(recipe(d_ff(4, 8), num_layers=MAX_LAYERS)) == [
        "<mapping>: model.layer.feedforward.d_ff.per_layer: has 2 values, but `layer` applies to 10000 layers"
    ]
    assert time.thread_time() - start < 5


def test_a_list_for_a_few_of_many_layers_is_quick():
    kinds = {"few": d_ff(4, 8, 4), "many": {}}
    start = time.thread_time()
    blueprint = load_recipe(recipe(layers=kinds, pattern=["few*3", ["many"]], num_layers=MAX_LAYERS)).blueprint()
    assert time.thread_time() - start < 10
    assert blueprint.decoder is not None
    assert blueprint.decoder.order[:5] == (0, 1, 0, 0, 0)


def test_a_wrong_value_is_told_wherever_it_stands_in_a_list(tmp_path):
    path = tmp_path / "mine.yaml"
    text = "tfkit: 1\nmodel: {type: decoder, d_model: 8, vocab_size: 9, num_layers: 3, embedding: tokens,\n"
    path.write_text(text + "  layer: {norm: layer_norm, feedforward: {type: mlp, d_ff: {per_layer: [4, -8, -8]}}}}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert [(fault.line, fault.column) for fault in caught.value.faults] == [(3, 76), (3, 80)]


def test_layers_that_all_differ_have_a_bound():
    load_recipe(recipe(d_ff(*range(1, 257)), num_layers=256))
    (fault,) = said(recipe(d_ff(*range(1, 301)), num_layers=300))
    assert fault.endswith("this stack has more than 256 different layers; make some equal")
    kinds = {f"k{number}": {"feedforward": {"d_ff": number + 1}} for number in range(20)}
    pairs = [f"{one}+{other}" for one in kinds for other in kinds]
    (fault,) = said(recipe(layers=kinds, pattern=pairs, num_layers=400))
    assert fault == "<mapping>: model.pattern: this stack has more than 256 different layers; make some equal"


def test_kinds_have_a_bound():
    kinds = {f"k{number}": {} for number in range(257)}
    assert said(recipe(layers=kinds, pattern=["k0"])) == ["<mapping>: model.layers: names 257 kinds; the limit is 256"]


def test_what_layers_share_is_counted_once_where_a_list_makes_them_differ():
    layer = {
        "norm": {"type": "layer_norm", "weight_offset": {"per_layer": [0.0, 1.0]}},
        "feedforward": {"type": "mlp", "d_ff": 4, "shared": True},
    }
    blueprint = load_recipe(recipe(layer)).blueprint()
    model = build_model(blueprint, device="meta")
    assert count_parameters(blueprint) == sum(weight.numel() for weight in model.parameters())


# ------------------------------------------------------------------------------------------------------------- messages


def test_more_faults_than_anybody_reads_end_the_search():
    wrong = {f"wrong_{number}": 0 for number in range(30_000)}
    assert 1_000 <= len(said(recipe(**wrong))) <= 1_100


def test_an_unknown_kind_lists_a_few_of_many():
    kinds = {f"k{number}": {} for number in range(100)}
    (fault,) = said(recipe(layers=kinds, pattern=["nothing_like_them"]))
    assert fault.endswith("`layers:` names " + ", ".join(f"k{number}" for number in range(20)) + " and 80 more")


def test_what_is_long_is_cut():
    (fault,) = said(recipe({"norm": "x" * 100_000}))
    assert len(fault) < 300
    (fault,) = said(recipe({"x" * 100_000: 1}))
    assert len(fault) < 500
    (fault,) = said(recipe(), sets=["model.layer.dropout=" + "9" * 100_000])
    assert len(fault) < 500
    (fault,) = said({"tfkit": 1, "extends": "x" * 100_000})
    assert len(fault) < 500


def test_a_fault_is_one_line():
    assert said(recipe({"norm": "a\nb", "c\nd": 1})) == [
        "<mapping>: model.layer.c d: unknown option; available: attention, attention_norm, cross_attention, "
        "cross_attention_norm, dropout, feedforward, feedforward_norm, mask, mixer, mixer_norm, norm, position, "
        "residual, shared, sublayers",
        "<mapping>: model.layer.norm: unknown norm 'a b' (available: layer_norm, rms_norm)",
    ]


def test_a_number_of_thousands_of_digits_is_refused():
    assert said(recipe(d_model=10**5000))[0] == "<mapping>: model.d_model: a number with more than 100 digits"


# -------------------------------------------------------------------------------------------------------- resolved.yaml


@pytest.mark.parametrize(
    "pattern",
    [
        ["local", "global"],
        ["local*2", "global", "local"],
        ["first", ["local*5", "global"], "first", "global"],
        ["global*700", "first", ["local*3", "first*2"]],
    ],
    ids=str,
)
def test_a_long_order_is_written_and_read_again(tmp_path, pattern):
    kinds = {"local": {"mask": {"type": "window", "size": 4}}, "global": {}, "first": {"dropout": 0.5}}
    loaded = load_recipe(recipe(layers=kinds, pattern=pattern, num_layers=9_999))
    assert len(loaded.resolved()) < 200_000
    assert again(tmp_path, loaded).blueprint() == loaded.blueprint()


def test_a_cross_attention_with_a_gate_of_its_own(tmp_path):
    cross = {"type": "multi_head", "num_heads": 2, "gate": {"over": "head"}}
    loaded = load_recipe(recipe({"cross_attention": cross}, type="encoder_decoder"))
    assert again(tmp_path, loaded).blueprint() == loaded.blueprint()


# --------------------------------------------------------------------------------------------------------------- rotary


@pytest.mark.parametrize(
    ("scaling", "theta", "head_dim"),
    [
        ({"type": "yarn", "factor": 2.0, "original_length": 16}, 1.0, 8),
        ({"type": "longrope", "short": [1.0], "long": [1.0], "original_length": 16}, 1e4, 8),
    ],
)
def test_a_scaling_that_gives_no_frequencies_is_refused(scaling, theta, head_dim):
    position = {"type": "rotary", "theta": theta, "scaling": scaling}
    attention = {"type": "multi_head", "num_heads": 1, "head_dim": head_dim}
    assert said(recipe({"attention": attention}, position=position)) == [
        "<mapping>: model.position.scaling: yields frequencies that are not finite, "
        f"or not one for each of {head_dim // 2} pairs of channels"
    ]


def test_the_norm_of_an_embedding_of_vectors_fits_its_width():
    model = recipe({})["model"] | {"embedding": {"type": "features", "norm": {"type": "rms_norm", "group_size": 3}}}
    assert any("model.embedding.norm.group_size" in text for text in said({"tfkit": 1, "model": model}))


# -------------------------------------------------------------------------------------------------- what a call takes


def test_a_head_cannot_look_for_a_token_among_vectors():
    head = {"type": "pooled", "pool": "last", "until": 8}
    assert said(recipe(type="encoder", embedding={"type": "features", "d_input": 4}, head=head)) == [
        "<mapping>: model.head.until: searches for a token, but the encoder reads vectors"
    ]


def test_a_number_is_one_that_float32_holds():
    attention = {"type": "multi_head", "num_heads": 2, "clip": 1e39}
    assert said(recipe({"attention": attention})) == [
        "<mapping>: model.layer.attention.clip: "
        "expected a number of at most 1e18, so that its square fits in float32, got 1e+39"
    ]


# --------------------------------------------------------------------------------------------------------------- counts


@looped("value", [0, -1, True, 2.0, 1e300, 4_097, 2**70])
def test_a_count_beyond_its_bound_is_refused_at_once(value: Any):
    experts = {"type": "experts", "num_experts": value, "num_active": 1, "expert": {"type": "mlp", "d_ff": 4}}
    start = time.thread_time()
    (fault,) = said(recipe({"feedforward": experts}))
    assert fault.startswith("<mapping>: model.layer.feedforward.num_experts: ")
    assert time.thread_time() - start < 2


@looped(
    ("study", "message"),
    [
        (
            {"tune": {f"train.{key}": list(range(1, 10**4)) for key in ("steps", "accumulate")}},
            "results in 99,980,001 comb",
        ),
        ({"seeds": list(range(1_001))}, "must have at most 1,000 values"),
        ({"seeds": [2**32]}, "must be at most 4,294,967,295"),
        ({"seeds": [True]}, "expected a whole number"),
    ],
)
def test_a_study_that_never_ends_is_refused_at_once(study: dict[str, Any], message: str):
    text = recipe() | {"variants": {"wide": {"model.d_model": 16}}, "study": {"compare": ["wide"], **study}}
    start = time.thread_time()
    assert any(message in fault for fault in said(text))
    assert time.thread_time() - start < 2
