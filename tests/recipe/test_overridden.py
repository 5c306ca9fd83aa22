"""A wrong value is refused though nothing is made of it: both sides, or all kinds, say something else."""

from __future__ import annotations

from typing import Any

import pytest

from tfkit.core.errors import RecipeError
from tfkit.recipe.load import Recipe, load_recipe

from ..sampling import looped

SIDE: dict[str, Any] = {
    "d_model": 8,
    "vocab_size": 20,
    "num_layers": 2,
    "max_length": 16,
    "embedding": "tokens",
    "position": "sinusoidal",
    "mask": {"type": "window", "size": 4},
    "final_norm": "none",
    "final_dropout": 0.1,
    "layers": {"a": {"dropout": 0.2}},
    "pattern": ["a"],
    "layer": {
        "residual": "pre_norm",
        "norm": "rms_norm",
        "dropout": 0.1,
        "shared": False,
        "attention": {"type": "multi_head", "num_heads": 2},
        "feedforward": {"type": "mlp", "d_ff": 8},
    },
}
WHOLE = "expected a whole number from 1 to 268,435,456, got "
# in `model:`, as a dotted key; its value; what is said of it
WRONG: list[tuple[str, Any, str]] = [
    ("num_layers", "hello", "expected a whole number from 1 to 10,000, got 'hello'"),
    ("num_layers", 0, "expected a whole number from 1 to 10,000, got 0"),
    ("d_model", 1.5, f"{WHOLE}1.5"),
    ("vocab_size", True, f"{WHOLE}true"),
    ("max_length", -1, f"{WHOLE}-1"),
    ("final_dropout", 7, "expected a rate from 0 to below 1, got 7"),
    ("pattern", 5, "expected a list of kinds, such as [local*5, global]"),
    ("embedding", "tokenz", "unknown embedding 'tokenz'"),
    ("position", {"type": "rotary", "theta": "x"}, "expected a number, got 'x'"),
    ("mask", [{"type": "window", "size": "x"}], "expected a whole number, got 'x'"),
    ("final_norm", {"type": "rms_norm", "epss": 1.0}, "unknown option"),
    ("layer.residual", "pre_nrm", "unknown residual 'pre_nrm'"),
    ("layer.dropout", "x", "expected a rate from 0 to below 1, got 'x'"),
    ("layer.shared", 3, "expected true or false, got 3"),
    ("layer.norm", {"type": "rms_norm", "eps": "x"}, "expected a number, got 'x'"),
    ("layer.attention", {"type": "multi_head", "num_heads": 0}, "must be at least 1, got 0"),
    ("layer.attention", {"type": "linear", "num_heads": "x"}, "expected a whole number, got 'x'"),
    ("layers.a.dropout", 3, "expected a rate from 0 to below 1, got 3"),
]


def laid(keys: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`keys` with one more at a dotted path."""
    first, _, rest = path.partition(".")
    return keys | {first: laid(keys.get(first, {}), rest, value) if rest else value}


def load(model: dict[str, Any], sets: tuple[str, ...] = ()) -> Recipe:
    return load_recipe({"tfkit": 1, "model": model | {"head": "language_model"}}, sets=sets)


def faults(model: dict[str, Any], sets: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(model, sets)
    return [f"{fault.place}: {fault.path}: {fault.message}" for fault in caught.value.faults]


@looped(("path", "value", "message"), WRONG)
def test_both_sides_say_something_else(path, value, message):
    model = laid({"type": "encoder_decoder", "encoder": SIDE, "decoder": SIDE}, path, value)
    (found,) = faults(model)
    assert found.startswith(f"<mapping>: model.{path}")
    assert message in found


def test_the_command_line_is_named():
    model = {"type": "encoder_decoder", "encoder": SIDE, "decoder": SIDE}
    assert faults(model, ("model.num_layers=hello",)) == [
        "--set model.num_layers=hello: model.num_layers: expected a whole number from 1 to 10,000, got 'hello'"
    ]


def test_what_is_right_by_itself_may_stand_though_nothing_is_made_of_it():
    own = {"d_model": 6, "embedding": "features", "layer": {"attention": {"type": "linear", "num_heads": 4}}}
    own |= {"layers": {"b": {"attention": {"bias": False}}}, "mask": "none", "final_norm": True}
    assert load({"type": "encoder_decoder", "encoder": SIDE, "decoder": SIDE} | own)


def test_options_that_the_sides_complete_may_stand():
    layer = {"attention": {"bias": False}, "feedforward": {"activation": "gelu"}}
    assert load({"type": "encoder_decoder", "encoder": SIDE, "decoder": SIDE, "layer": layer})


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_what_one_side_uses_is_told_once(side):
    model = {"type": "encoder_decoder", "num_layers": "x"} | {"encoder": SIDE, "decoder": SIDE}
    model[side] = {key: value for key, value in SIDE.items() if key != "num_layers"}
    assert faults(model) == ["<mapping>: model.num_layers: expected a whole number from 1 to 10,000, got 'x'"]


SINGLE = SIDE | {"type": "decoder"}


@looped(
    ("key", "value", "other", "message"),
    [
        ("attention", {"num_heads": "x"}, {"num_heads": 2}, ".num_heads: expected a whole number, got 'x'"),
        ("dropout", "x", 0.1, ": expected a rate from 0 to below 1, got 'x'"),
        ("residual", "foo", "pre_norm", ": unknown residual 'foo'"),
        ("shared", 7, True, ": expected true or false, got 7"),
        ("mixer", {"type": "lstm", "d_hidden": "x"}, "none", ".d_hidden: expected a whole number, got 'x'"),
    ],
)
def test_every_kind_says_something_else(key, value, other, message):
    kinds = {"a": {key: other}, "b": {key: other}}
    layer = SIDE["layer"] | {key: SIDE["layer"].get(key, {}) | value if isinstance(value, dict) else value}
    model = SINGLE | {"layer": layer, "layers": kinds, "pattern": ["a", "b"]}
    (found,) = faults(model)
    assert found.startswith(f"<mapping>: model.layer.{key}{message}")
    assert load(SINGLE | {"layers": kinds, "pattern": ["a", "b"]})


def test_every_layer_drops_the_stacks_mask():
    kinds = {"a": {"mask": None}}
    (found,) = faults(SINGLE | {"mask": "foo", "layers": kinds, "pattern": ["a"]})
    assert found.startswith("<mapping>: model.mask: unknown mask 'foo'")


def test_one_layer_has_a_value_of_a_list_each():
    layer = SIDE["layer"] | {"feedforward": {"type": "mlp", "d_ff": {"per_layer": [8, 16]}}}
    assert load(SINGLE | {"layer": layer, "pattern": None, "layers": {}})


@pytest.mark.parametrize("key", ["cross_attention", "cross_attention_norm"])
def test_cross_attention_stands_where_there_is_something_to_attend_to(key):
    value = {"type": "multi_head", "num_heads": 2} if key == "cross_attention" else "rms_norm"
    layer = SIDE["layer"] | {key: value}
    (found,) = faults(SINGLE | {"layer": layer})
    assert found.startswith(f"<mapping>: model.layer.{key}: there is no memory to attend to")
    encoder = {"encoder": {"layer": {key: value}}, "type": "encoder_decoder"}
    (found,) = faults(SIDE | encoder)
    assert found.startswith(f"<mapping>: model.encoder.layer.{key}: an encoder has no memory to attend to")
    assert load(SIDE | {"type": "encoder_decoder", "layer": layer})  # meant for the decoder
