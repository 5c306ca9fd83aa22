"""The least recipes of what broken ones have found: bounds on what a recipe costs, and messages that stay readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.work import work
from tfkit.core.errors import RecipeError
from tfkit.models.build import build_model
from tfkit.recipe.architecture.prepare import MAX_LAYERS
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count_parameters

from ..sampling import looped
from .small import HEADS, MLP, read_again, said, small

LETTERS = 100_000
DIFFER = "this stack has more than 256 different layers; make some equal"


def d_ff(*widths: int) -> dict[str, Any]:
    return {"feedforward": {"type": "mlp", "d_ff": {"per_layer": list(widths)}}}


def numbered(count: int, **overlay: Any) -> dict[str, Any]:
    return {f"k{number}": overlay for number in range(count)}


def experts(count: Any) -> dict[str, Any]:
    return {
        "feedforward": {"type": "experts", "num_experts": count, "num_active": 1, "expert": {"type": "mlp", "d_ff": 4}}
    }


PAIRS = [f"k{one}+k{other}" for one in range(20) for other in range(20)]
SCALED = {"type": "rotary", "theta": 1.0, "scaling": {"type": "yarn", "factor": 2.0, "original_length": 16}}
LONG = {"type": "longrope", "short": [1.0], "long": [1.0], "original_length": 16}
FEATURES = {"type": "features", "d_input": 4}
MESSAGES: list[tuple[dict[str, Any], str]] = [
    (small(d_ff(4, 8), num_layers=MAX_LAYERS),
     "model.layer.feedforward.d_ff.per_layer: has 2 values, but `layer` applies to 10000 layers"),
    (small(d_ff(*range(1, 301)), num_layers=300), f"model.layer.feedforward.d_ff: {DIFFER}"),
    (small(layers={f"k{n}": {"feedforward": {"d_ff": n + 1}} for n in range(20)}, pattern=PAIRS, num_layers=400),
     f"model.pattern: {DIFFER}"),
    (small(layers=numbered(257), pattern=["k0"]), "model.layers: names 257 kinds; the limit is 256"),
    (small(layers=numbered(100), pattern=["nothing_like_them"]), "model.pattern[0]: unknown kind 'nothing_like_them'; "
     "`layers:` names " + ", ".join(f"k{number}" for number in range(20)) + " and 80 more"),
    (small({"norm": "a\nb"}), "model.layer.norm: unknown norm 'a b' (available: layer_norm, rms_norm)"),
    (small({"c\nd": 1}), "model.layer.c d: unknown option; available: attention, attention_norm, cross_attention, "),
    (small(d_model=10**5000), "model.d_model: a number with more than 100 digits"),
    # rotary, heads and numbers
    *((small({"attention": HEADS | {"num_heads": 1}}, position=position),
       "model.position.scaling: yields frequencies that are not finite, or not one for each of 4 pairs of channels")
      for position in (SCALED, {"type": "rotary", "scaling": LONG})),
    (small(embedding={"type": "features", "norm": {"type": "rms_norm", "group_size": 3}}),
     "model.embedding.norm.group_size"),
    (small(type="encoder", embedding=FEATURES, head={"type": "pooled", "pool": "last", "until": 8}),
     "model.head.until: searches for a token, but the encoder reads vectors"),
    (small({"attention": HEADS | {"clip": 1e39}}),
     "model.layer.attention.clip: expected a number of at most 1e18, so that its square fits in float32, got 1e+39"),
    *((small(experts(value)), "model.layer.feedforward.num_experts: ")
      for value in (0, -1, True, 2.0, 1e300, 4_097, 2**70)),
]  # fmt: skip


@pytest.mark.usefixtures("shipped_parts")
@looped(("recipe", "expected"), MESSAGES)
def test_a_wrong_recipe_is_refused_at_once_in_one_line(recipe: dict[str, Any], expected: str):
    found: list[str] = []
    assert work(lambda: found.extend(said(recipe))) < 1_500_000  # functions entered
    assert any(fault.startswith(f"<mapping>: {expected}") for fault in found) and len(found) <= 3, found


@looped(
    ("source", "sets"),
    [
        (small({"norm": "x" * LETTERS}), []),
        (small({"x" * LETTERS: 1}), []),
        (small(), ["model.layer.dropout=" + "9" * LETTERS]),
        ({"tfkit": 1, "extends": "x" * LETTERS}, []),
    ],
)
def test_what_is_long_is_cut(source: dict[str, Any], sets: list[str]):
    (fault,) = said(source, sets=sets)
    assert len(fault) < 500


def test_more_faults_than_anybody_reads_end_the_search():
    assert 1_000 <= len(said(small(**{f"wrong_{number}": 0 for number in range(30_000)}))) <= 1_100


def test_a_wrong_value_is_reported_wherever_it_is_in_a_list(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    text = "tfkit: 1\nmodel: {type: decoder, d_model: 8, vocab_size: 9, num_layers: 3, embedding: tokens,\n"
    path.write_text(text + "  layer: {norm: layer_norm, feedforward: {type: mlp, d_ff: {per_layer: [4, -8, -8]}}}}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert [(fault.line, fault.column) for fault in caught.value.faults] == [(3, 76), (3, 80)]


def test_a_list_for_a_few_of_many_layers_is_quick():
    load_recipe(small(d_ff(*range(1, 257)), num_layers=256))
    kinds = {"few": d_ff(4, 8, 4), "many": {"feedforward": {"d_ff": 4}}}
    recipe = small(layers=kinds, pattern=["few*3", ["many"]], num_layers=MAX_LAYERS)
    found: list[Any] = []
    assert work(lambda: found.append(load_recipe(recipe).blueprint())) < 2_000_000  # functions entered
    assert found[0].decoder.order[:5] == (0, 1, 0, 0, 0)


def test_what_layers_share_is_counted_once_where_a_list_makes_them_differ():
    norm = {"type": "layer_norm", "weight_offset": {"per_layer": [0.0, 1.0]}}
    layer = {"residual": "post_norm", "norm": norm, "feedforward": MLP | {"shared": True}}
    blueprint = load_recipe(small(layer)).blueprint()
    model = build_model(blueprint, device="meta")
    assert count_parameters(blueprint) == sum(weight.numel() for weight in model.parameters())


@looped(
    "pattern",
    [
        ["local", "global"],
        ["local*2", "global", "local"],
        ["first", ["local*5", "global"], "first", "global"],
        ["global*700", "first", ["local*3", "first*2"]],
    ],
)
def test_a_long_order_is_written_and_read_again(pattern: list[Any]):
    kinds = {"local": {"mask": {"type": "window", "size": 4}}, "global": {}, "first": {"dropout": 0.5}}
    loaded = load_recipe(small(layers=kinds, pattern=pattern, num_layers=9_999))
    assert len(loaded.resolved()) < 200_000 and read_again(loaded).blueprint() == loaded.blueprint()


def test_a_cross_attention_with_a_gate_of_its_own():
    loaded = load_recipe(small({"cross_attention": HEADS | {"gate": {"over": "head"}}}, type="encoder_decoder"))
    assert read_again(loaded).blueprint() == loaded.blueprint()


@looped(
    ("study", "message"),
    [
        ({"tune": {f"train.{key}": list(range(1, 10**4)) for key in ("steps", "accumulate")}}, "results in 99,980,001"),
        ({"seeds": list(range(1_001))}, "must have at most 1,000 values"),
        ({"seeds": [2**32]}, "must be at most 4,294,967,295"),
        ({"seeds": [True]}, "expected a whole number"),
    ],
)
def test_a_study_that_never_ends_is_refused_at_once(study: dict[str, Any], message: str):
    text = small() | {"variants": {"wide": {"model.d_model": 16}}, "study": {"compare": ["wide"], **study}}
    found: list[str] = []
    assert work(lambda: found.extend(said(text))) < 2_000_000  # functions entered
    assert any(message in fault for fault in found)
