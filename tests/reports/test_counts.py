"""Counts without weights against real models, real forwards and formulas worked out by hand; lengths of texts."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from torch import Tensor

from tests.work import work
from tfkit.cli.main import WRONG, main
from tfkit.components.feedforward.dense import FeedForward
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Shape
from tfkit.core.context import Context
from tfkit.core.errors import UsageError
from tfkit.core.keys import RateValue, SizeValue
from tfkit.core.registry import register
from tfkit.generation.stepper import Stepper, evaluating
from tfkit.models.build import build_model
from tfkit.recipe.keys import LAYER as LAYER_KEYS
from tfkit.recipe.keys import STACK
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import Counts, count, count_parameters, default_length
from tfkit.reports.show import as_data
from tfkit.reports.table import headline

from ..recipe.small import GONE, read_again, small
from ..sampling import looped

LAYER = {
    "residual": "pre_norm",
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 4, "num_kv_heads": 2, "dropout": 0.1},
    "feedforward": {"type": "mlp", "d_ff": 48},
    "dropout": 0.1,
}
MODEL = {
    "type": "decoder",
    "d_model": 32,
    "vocab_size": 100,
    "max_length": 64,
    "num_layers": 3,
    "embedding": "tokens",
    "position": "learned",
    "layer": LAYER,
    "head": {"type": "language_model", "tied": True},
}
PAIRED = {
    **{key: value for key, value in MODEL.items() if key != "num_layers"},
    "type": "encoder_decoder",
    "embedding": {"type": "tokens", "shared": True},
    "encoder": {"num_layers": 2},
    "decoder": {"num_layers": 3},
}
KINDS = {"layers": {"wide": {"feedforward": {"d_ff": 96}}, "plain": {}}}


def blueprint(model: dict[str, Any]) -> Blueprint:
    return load_recipe({"tfkit": 1, "model": model}).blueprint()


def fused_on_cpu(model: dict[str, Any]) -> dict[str, Any]:
    # on the CPU no fused attention drops weights, and none takes fewer key-value heads without copying them
    layer = LAYER | {"attention": {"type": "multi_head", "num_heads": 4}}
    return model | {"layer": layer}


def row_of(counts: Counts, stack: str, name: str) -> Any:
    return next(row for row in counts.rows if (row.stack, row.name) == (stack, name))


MODELS = {
    "tied": MODEL,
    "untied": MODEL | {"head": "language_model"},
    "encoder": MODEL | {"type": "encoder", "head": {"type": "masked_lm", "tied": True}},
    "two_heads": MODEL | {"type": "encoder", "heads": {"class": {"type": "classifier", "num_classes": 3}}},
    "no_head": MODEL | {"head": "none"},
    "vectors": MODEL | {"embedding": "none", "position": "none", "head": "none"},
    "memory": MODEL | {"memory": {"d_model": 20}},
    "factorised": MODEL | {"embedding": {"type": "tokens", "d_embedding": 8}},
    "frozen": MODEL | {"embedding": {"type": "tokens", "frozen": True}},
    "post_norm": MODEL | {"layer": LAYER | {"residual": "post_norm"}},
    "parallel": MODEL | {"layer": LAYER | {"residual": "parallel"}},
    "shared_layers": MODEL | {"layer": LAYER | {"shared": True}},
    "shared_feedforward": MODEL | {"layer": LAYER | {"feedforward": LAYER["feedforward"] | {"shared": True}}},  # type: ignore[operator]
    "kinds": MODEL | KINDS | {"pattern": ["plain", "wide*2", "plain"], "num_layers": 7},
    "shared_kinds": MODEL | {"layer": LAYER | {"shared": True}} | KINDS | {"pattern": ["wide*2", "plain*2", "wide"]},
    "layer_bias": MODEL | {"position": "none", "layer": LAYER | {"position": "t5_bias"}},
    "prefix": MODEL | {"mask": "prefix"},
    "paired": PAIRED,
    "two_tables": PAIRED | {"embedding": "tokens"},
}
MODELS["shared_kinds"] = {key: value for key, value in MODELS["shared_kinds"].items() if key != "num_layers"}


@looped("name", MODELS)
def test_parameters_equal_those_of_the_built_model(name: str) -> None:
    plan = blueprint(MODELS[name])
    weights = list(build_model(plan).parameters())
    counts = count(plan, 16)
    assert counts.total.parameters == count_parameters(plan) == sum(weight.numel() for weight in weights)
    assert counts.trainable == sum(weight.numel() for weight in weights if weight.requires_grad)
    assert sum(row.cost.parameters for row in counts.rows) == counts.total.parameters


def kept_by_a_real_forward(plan: Blueprint, ids: Tensor) -> int:
    """Bytes that a forward on the CPU keeps for the backward pass, weights left out."""
    model = build_model(plan).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    paired = {"decoder_input_ids": ids.clone()} if plan.encoder is not None and plan.decoder is not None else {}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(ids, **paired)
    assert out.logits is not None
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in weights)


@looped("name", ["tied", "encoder", "post_norm", "shared_layers", "kinds", "paired"])
def test_activations_equal_those_of_a_real_forward(name: str) -> None:
    plan = blueprint(fused_on_cpu(MODELS[name]))
    assert count(plan, 16, 2).total.activation_bytes == kept_by_a_real_forward(plan, torch.randint(100, (2, 16)))


def test_flops_of_a_layer_equal_the_formula() -> None:
    length, d_model, d_ff, kv_width = 16, 32, 48, 16
    counts = count(blueprint(MODEL), length, batch=3)
    layer = row_of(counts, "decoder", "layer")
    projections = 2 * d_model * (2 * d_model + 2 * kv_width)
    square = 2 * 2 * length * d_model
    feedforward = 2 * 2 * d_model * d_ff
    assert layer.cost.flops_per_token == 3 * (projections + square + feedforward)
    assert {part.name: part.cost.flops_per_token for part in layer.parts if part.cost.flops_per_token} == {
        "attention": projections + square,
        "feedforward": feedforward,
    }
    assert row_of(counts, "", "head").cost.flops_per_token == 2 * d_model * 100
    assert counts.total.flops_per_token == layer.cost.flops_per_token + 2 * d_model * 100


def test_flops_of_a_pair_are_both_sides_by_the_tokens_of_one() -> None:
    length, d_model = 16, 32
    attention = 2 * d_model * (2 * d_model + 2 * 16) + 4 * length * d_model
    feedforward = 4 * d_model * 48
    total = count(blueprint(PAIRED), length).total.flops_per_token
    assert total == 2 * (attention + feedforward) + 3 * (2 * attention + feedforward) + 2 * d_model * 100


def test_soft_capped_scores_count_the_same_products() -> None:
    capped = LAYER | {"attention": LAYER["attention"] | {"softcap": 30.0}}  # type: ignore[operator]
    eager, fused = (count(blueprint(MODEL | {"layer": layer}), 16).total for layer in (capped, LAYER))
    assert eager.flops_per_token == fused.flops_per_token
    assert eager.activation_bytes > fused.activation_bytes  # the eager form keeps the square


def test_what_is_made_once_is_counted_once() -> None:
    masked = MODEL | {"layer": fused_on_cpu(MODEL)["layer"] | {"mask": {"type": "window", "size": 4}}}
    few, many = (count(blueprint(masked | {"num_layers": depth}), 16) for depth in (2, 5))
    once = row_of(few, "decoder", "once").cost
    assert once == row_of(many, "decoder", "once").cost
    assert 16 * 16 <= once.activation_bytes < 2 * 16 * 16  # the mask, a byte an element
    layer = row_of(few, "decoder", "layer").cost.activation_bytes
    assert many.total.activation_bytes - few.total.activation_bytes == layer // 2 * 3


def test_costs_of_parts_add_up() -> None:
    counts = count(blueprint(MODELS["kinds"]), 16, 2)
    for row in counts.rows:
        assert sum(part.cost.activation_bytes for part in row.parts) * row.times == row.cost.activation_bytes
        assert sum(part.cost.cache_bytes for part in row.parts) * row.times == row.cost.cache_bytes


def test_bfloat16_halves_what_is_in_the_models_type() -> None:
    plan = blueprint(MODEL)
    single, half = count(plan), count(plan, dtype=torch.bfloat16)
    assert 2 * half.total.cache_bytes == single.total.cache_bytes
    assert 2 * half.weight_bytes == single.weight_bytes
    assert single.total.activation_bytes > half.total.activation_bytes


def test_a_custom_part_counts_rightly() -> None:
    @register("feedforward", "counted_twice")
    class CountedTwice(FeedForward):
        """x W W."""

        def __init__(self, config: FeedForward.Config, shape: Shape) -> None:
            super().__init__(config, shape)
            self.square = torch.nn.Linear(shape.d_model, shape.d_model, bias=False)

        def forward(self, x: Tensor, context: Context) -> Tensor:
            out: Tensor = self.square(self.square(x))
            return out

    counts = count(blueprint(MODEL | {"layer": LAYER | {"feedforward": "counted_twice"}}), 16)
    part = next(part for part in row_of(counts, "decoder", "layer").parts if part.name == "feedforward")
    assert (part.cost.parameters, part.cost.flops_per_token) == (32 * 32, 2 * 2 * 32 * 32)


def test_a_deep_model_of_petabytes_answers_at_once() -> None:
    huge = MODEL | {"d_model": 2**15, "num_layers": 10_000, "vocab_size": 10**6}
    plan = blueprint(huge)
    counts = count(plan)
    assert counts.total.parameters == count_parameters(plan) > 10**13
    more = work(lambda: count(blueprint(huge))) - work(lambda: count(blueprint(huge | {"num_layers": 2})))
    assert more < 10 * 10_000  # functions entered


def test_sizes_beyond_64_bits_are_refused_in_a_sentence() -> None:
    heads = {"type": "multi_head", "num_heads": 2**16, "head_dim": 2**28}
    with pytest.raises(UsageError, match=r"would exceed 2\^63 bytes"):
        count_parameters(blueprint(MODEL | {"d_model": 2**20, "layer": LAYER | {"attention": heads}}))
    endless = blueprint({**MODEL, "max_length": "none", "position": "alibi"})
    with pytest.raises(UsageError, match=r"would exceed 2\^63 bytes"):
        count(endless, length=2**40)


@looped(
    ("length", "batch", "message"),
    [
        (0, 1, "must be at least 1"),
        (8, 0, "must be at least 1"),
        (-1, 1, "must be at least 1"),
        (65, 1, "length 65 exceeds the decoder's max_length 64"),
    ],
)
def test_impossible_calls_are_refused(length: int, batch: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        count(blueprint(MODEL), length, batch)


HEADS = {"type": "multi_head", "num_heads": 4}
WINDOW = {"mask": {"type": "window", "size": 6}}
LAYERS: dict[str, dict[str, Any]] = {
    "heads": {"attention": HEADS},
    "grouped": {"attention": HEADS | {"num_kv_heads": 2, "value_dim": 6}},
    "one_head": {"attention": HEADS | {"num_kv_heads": 1}},
    "window": {"attention": HEADS} | WINDOW,
    "long_window": {"attention": HEADS, "mask": {"type": "window", "size": 100}},
    "latent": {"attention": {"type": "latent", "num_heads": 4, "kv_rank": 8, "head_dim": 4, "rotary_head_dim": 2}},
    "differential": {"attention": {"type": "differential", "num_heads": 4}} | WINDOW,
    "linear": {"attention": {"type": "linear", "num_heads": 4}},
    "performer": {"attention": {"type": "performer", "num_heads": 4}},
    "lstm": {"mixer": "lstm"},
    "lstm_that_reads": {"mixer": "lstm", "cross_attention": HEADS},
    "mamba": {"mixer": "mamba"},
    "mamba2": {"mixer": {"type": "mamba2", "head_dim": 8}},
    "short_convolution": {"mixer": "short_convolution"},
    "gated_delta_net": {"mixer": {"type": "gated_delta_net", "num_heads": 2, "num_value_heads": 4, "value_dim": 3}},
    "kimi_delta": {"mixer": {"type": "kimi_delta", "num_heads": 4}},
    "shared": {"attention": HEADS, "shared": True},
    "shared_attention": {"attention": HEADS | {"shared": True}},
}
CACHES = [
    *((name, "decoder") for name in LAYERS if name != "lstm_that_reads"),
    *((name, "encoder_decoder") for name in ("grouped", "window", "latent", "linear", "lstm_that_reads")),
]


def cached(layer: dict[str, Any], kind: str = "decoder", **more: Any) -> Blueprint:
    """A small model of such layers."""
    sides = {"encoder": {"num_layers": 1}, "decoder": {"num_layers": 3}} if kind != "decoder" else {}
    parts = {"norm": "layer_norm", "attention": GONE, "feedforward": {"type": "mlp", "d_ff": 24}}
    return load_recipe(small(parts | layer, type=kind, d_model=16, num_layers=3, **sides, **more)).blueprint()


def held(plan: Blueprint, rows: int, prompt: int, length: int) -> int:
    """Bytes of the state after a prompt and the tokens after it, up to `length`, from a source of that length."""
    with evaluating(model := build_model(plan)):
        sources = [[3 + row] * length for row in range(rows)] if plan.encoder is not None else None
        stepper = Stepper(model, [[1 + row] * prompt for row in range(rows)], sources, rooms=[length] * rows)
        for _ in range(length - prompt):
            stepper.logits()
            stepper.append(torch.ones(rows, dtype=torch.long))
        stepper.logits()
    assert stepper.state is not None and stepper.state.length == length
    return stepper.state.bytes()


@looped(("name", "kind"), CACHES)
def test_a_cache_is_as_large_as_foretold(name: str, kind: str) -> None:
    plan = cached(LAYERS[name], kind)
    assert count(plan, 12, 2).total.cache_bytes == held(plan, 2, 9, 12) > 0


def test_a_window_bounds_the_cache_and_layers_that_differ_hold_what_each_needs() -> None:
    window, token = cached(LAYERS["window"]), 2 * 16 * 4
    assert count(window, 4).total.cache_bytes == held(window, 1, 1, 4) == 3 * 4 * token  # not full yet
    assert count(window, 100).total.cache_bytes == count(window, 1000).total.cache_bytes
    plan = cached(LAYERS["heads"], layers={"near": WINDOW, "far": {}}, pattern=["near", "near", "far"])
    assert count(plan, 40).total.cache_bytes == held(plan, 1, 3, 40) == token * (5 + 5 + 40)
    assert count(blueprint(MODELS["encoder"])).total.cache_bytes == 0


LONG = small(position={"type": "learned", "max_length": 24})


@looped(
    ("position", "max_length", "length"),
    [
        ("{type: learned, max_length: 24}", "none", 24),
        ("{type: learned, max_length: 24}", "16", 16),
        ("[{type: learned, max_length: 24}, {type: learned, max_length: 20}]", "none", 20),
        ("[{type: learned, max_length: 24}, rotary]", "none", 24),
        ("rotary", "none", 512),
    ],
)
def test_the_shortest_length_holds(position: str, max_length: str, length: int) -> None:
    recipe = load_recipe(LONG, sets=[f"model.position={position}", f"model.max_length={max_length}"])
    assert default_length(recipe.blueprint()) == count(recipe.blueprint()).length == length
    assert read_again(recipe).blueprint() == recipe.blueprint()


def test_of_two_stacks_each_has_its_own_length() -> None:
    sets = ["model.type=encoder_decoder", "model.encoder.position={type: learned, max_length: 12}"]
    plans = load_recipe(LONG, sets=sets).blueprint().stacks()
    assert [plan.max_length for plan in plans] == [12, 24]


def test_the_length_that_a_position_holds_in_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(LONG))

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, list(words))

    assert "At length 24," in run("show", "mine.yaml").stdout
    assert run("show", "mine.yaml", "--length", "9").exit_code == 0
    longer = run("show", "mine.yaml", "--length", "25")
    assert (longer.exit_code, longer.stderr) == (WRONG, "tfkit: length 25 exceeds the decoder's max_length 24\n")
    place = re.escape("model.max_length: 24\n  derived from model.position: mine.yaml:")
    assert re.match(place, run("explain", "mine.yaml", "model.max_length").stdout)
    assert re.search(r"max_length: 24  # mine.yaml:\d+:\d+, from model.position", load_recipe("mine.yaml").resolved())


def test_the_data_has_every_declared_figure() -> None:
    blueprint = load_recipe("gpt2", overrides={"model.final_dropout": 0.25, "model.layer.shared": True}).blueprint()
    data = as_data(blueprint, count(blueprint, 8))
    figures = {name for name, key in STACK.items() if isinstance(key.kind, SizeValue | RateValue)}
    assert figures <= data["stacks"]["decoder"].keys()
    assert data["stacks"]["decoder"]["final_dropout"] == 0.25
    layer = next(row for row in data["rows"] if "layers" in row)
    assert {name for name, key in LAYER_KEYS.items() if key.is_plain} <= layer.keys()
    assert layer["shared"] is True
    parts = {part["name"] for row in data["rows"] for part in row["parts"]}
    assert {"embedding", "position", "final_norm"} <= parts


def test_the_headline_names_what_is_set_and_nothing_else() -> None:
    plain = load_recipe("gpt2").blueprint()
    assert "final_dropout" not in headline(as_data(plain, count(plain, 8)))
    paired = load_recipe("transformer-base", overrides={"model.decoder.final_dropout": 0.25}).blueprint()
    line = headline(as_data(paired, count(paired, 8)))
    assert "d_model 512, " in line
    assert "layers 6 and 6, final_dropout 0.25, " in line
