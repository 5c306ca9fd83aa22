"""The grammar of `model:`, rule by rule (R1 to R21 of the recipe language)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tfkit.components.position import Position
from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.context import Placement, Span, Visibility
from tfkit.core.errors import RecipeError
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

from ..sampling import looped

LAYER = {
    "residual": "pre_norm",
    "norm": {"type": "layer_norm", "eps": 1e-3},
    "attention": {"type": "multi_head", "num_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 16},
}
BASE: dict[str, Any] = {
    "type": "decoder",
    "d_model": 8,
    "vocab_size": 20,
    "max_length": 16,
    "num_layers": 4,
    "embedding": "tokens",
    "position": "rotary",
    "layer": LAYER,
    "head": "language_model",
}
GONE = object()
KINDS = {"a": {}, "b": {"mask": {"type": "window", "size": 2}}, "c": {"feedforward": {"d_ff": 32}}}


def recipe(layer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """BASE with keys of `model` replaced (GONE: left out) and keys of `layer` replaced."""
    model = {key: value for key, value in (BASE | changes).items() if value is not GONE}
    if layer is not None:
        model["layer"] = {key: value for key, value in (LAYER | layer).items() if value is not GONE}
    return {"tfkit": 1, "model": model}


def resolve(layer: dict[str, Any] | None = None, **changes: Any) -> Blueprint:
    """The Blueprint, after a look that the resolved text means the same."""
    loaded = load_recipe(recipe(layer, **changes))
    with TemporaryDirectory() as folder:
        path = Path(folder, "resolved.yaml")
        path.write_text(loaded.resolved())
        assert load_recipe(path).blueprint() == loaded.blueprint()
    return loaded.blueprint()


def build(layer: dict[str, Any] | None = None, **changes: Any) -> Model:
    return build_model(resolve(layer, **changes))


def faults(layer: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    """Each fault as `path: message`."""
    with pytest.raises(RecipeError) as caught:
        resolve(layer, **changes)
    return [f"{fault.path}: {fault.message}" for fault in caught.value.faults]


def layers(plan: StackPlan | Blueprint) -> list[LayerPlan]:
    """Each layer in order."""
    plan = plan.last if isinstance(plan, Blueprint) else plan
    return [plan.layers[kind] for kind in plan.order]


def letters(blueprint: Blueprint) -> str:
    """The layers in letters: those of KINDS, told apart by what they change."""
    found = ""
    for layer in layers(blueprint):
        window = any(rule.part.part_name == "window" for rule in layer.mask)
        wide = getattr(layer.sublayers[-1].config, "d_ff", 0) == 32
        found += "d" if window and wide else "b" if window else "c" if wide else "a"
    return found


def part(model: Model, path: str) -> nn.Module:
    return model.get_submodule(path)


# ------------------------------------------------------------------------------------------------------ R1 pattern


@looped(
    ("pattern", "num_layers", "expected"),
    [
        (["a", "b"], 4, "abab"),
        (["a", "b"], 5, "ababa"),  # the last turn is cut
        (["a*2", "b"], 4, "aaba"),
        (["a*3", "b*2"], 5, "aaabb"),
        (["a", ["b"]], 4, "abbb"),
        (["a", ["b", "c"]], 6, "abcbcb"),
        (["a", ["b*2", "c"], "a"], 7, "abbcbba"),  # cut before what follows
        ([["b"], "c"], 3, "bbc"),
        (["a*2", ["b"], "c"], 4, "aabc"),  # the inner list at least once
        (["c", "a*2", "b"], GONE, "caab"),  # without num_layers once
        (["c", "a*2", "b"], "none", "caab"),
        ("none", 3, "aaa"),
        (GONE, 2, "aa"),
        (["b+c*2", "a"], 4, "ddad"),
    ],
)
def test_r1_patterns(pattern, num_layers, expected):
    assert letters(resolve(layers=KINDS, pattern=pattern, num_layers=num_layers)) == expected


@looped(
    ("pattern", "num_layers", "expected"),
    [
        (["a", "b", "c"], 2, "model.pattern: a single pass of the pattern has 3 layers, but num_layers is 2"),
        (["a", ["b", "c"], "a"], 3, "model.pattern: a single pass of the pattern has 4 layers, but num_layers is 3"),
        (["a", ["b"]], GONE, "model.pattern: an inner list repeats to fill num_layers; set num_layers"),
        ([["a"], ["b"]], 4, "model.pattern[1]: a pattern can have only one inner list, the kinds to repeat"),
        (["a", []], 4, "model.pattern[1]: an inner list needs kinds to repeat, such as [local*5, global]"),
        ([], 4, "model.pattern: expected a list of kinds, such as [local*5, global]"),
        ("a", 4, "model.pattern: expected a list of kinds, such as [local*5, global]"),
        (["a", "d"], 4, "model.pattern[1]: unknown kind 'd'; `layers:` names a, b, c"),
        (["a+d"], 4, "model.pattern[0]: unknown kind 'd'; `layers:` names a, b, c"),
        (["a*0"], 4, "model.pattern[0]: expected a count from 1 to 10,000 after *, got 0"),
        (["a-b"], 4, "model.pattern[0]: expected a kind, such as local, local*3 or global+first"),
        ([3], 4, "model.pattern[0]: expected a kind, such as local, local*3 or global+first"),
        (
            ["a*6000", "b*6000"],
            GONE,
            "model.pattern: a single pass of the pattern has 12,000 layers; a stack has at most 10,000",
        ),
    ],
)
def test_r1_wrong_patterns(pattern, num_layers, expected):
    assert faults(layers=KINDS, pattern=pattern, num_layers=num_layers) == [expected]


def test_r1_a_shorter_stack_still_has_its_last_kind():
    blueprint = load_recipe(
        recipe(layers=KINDS, pattern=["a", ["b"], "c"]), overrides={"model.num_layers": 3}
    ).blueprint()
    assert letters(blueprint) == "abc"


def test_r1_kinds_without_a_pattern_and_kinds_taken_out():
    assert letters(resolve(layers=KINDS)) == "aaaa"
    said = faults(layers=KINDS | {"b": "none"}, pattern=["a", "b"])
    assert said == ["model.pattern[1]: unknown kind 'b'; `layers:` names a, c"]


# -------------------------------------------------------------------------------------------------------- R2 a + b


def test_r2_kinds_are_laid_over_the_layer_in_order():
    kinds = {"wide": {"feedforward": {"d_ff": 32, "activation": "gelu"}}, "flat": {"feedforward": {"d_ff": 8}}}
    blueprint = resolve(layers=kinds, pattern=["wide+flat", "flat+wide", "flat", "wide"])
    found = [
        (layer.sublayers[1].config.d_ff, layer.sublayers[1].config.activation.part.part_name)
        for layer in layers(blueprint)
    ]
    assert found == [(8, "gelu"), (32, "gelu"), (8, "relu"), (32, "gelu")]
    assert all(layer.sublayers[0].config.num_heads == 2 for layer in layers(blueprint))


# -------------------------------------------------------------------------------------------------------- R3 window


@looped(
    ("type", "window", "sees"),
    [
        ("decoder", {"size": 3}, ["100000", "110000", "111000", "011100", "001110", "000111"]),
        ("decoder", {"size": 1}, ["100000", "010000", "001000", "000100", "000010", "000001"]),
        ("encoder", {"size": 2}, ["110000", "111000", "011100", "001110", "000111", "000011"]),
        ("encoder", {"size": 3}, ["110000", "111000", "011100", "001110", "000111", "000011"]),
        ("encoder", {"before": 1, "after": 2}, ["111000", "111100", "011110", "001111", "000111", "000011"]),
        ("decoder", {"before": 2}, ["100000", "110000", "111000", "011100", "001110", "000111"]),
        ("encoder", {"after": 0}, ["100000", "110000", "111000", "111100", "111110", "111111"]),
    ],
)
def test_r3_window_sizes(type, window, sees):
    assert visible(resolve({"mask": {"type": "window"} | window}, type=type), length=6) == sees


def visible(blueprint: Blueprint, length: int, layer: int = 0) -> list[str]:
    """Who sees whom in one layer: a line a query, 1 = may look."""
    model = build_model(blueprint, "meta")
    stack = model.stack(blueprint.last.side)
    kind = stack.plan.order[layer]
    mask = Visibility(stack.kinds[kind].rules, Span(length, length, 0, torch.device("cpu"))).dense()
    rows = torch.ones(1, length, length, dtype=torch.bool) if mask is None else mask.expand(1, length, length)
    return ["".join(str(int(value)) for value in row) for row in rows[0]]


# --------------------------------------------------------------------------------------------------------- R4 masks


def rules(layer: LayerPlan) -> list[str]:
    return [rule.part.part_name for rule in layer.mask]


def test_r4_masks_of_type_stack_and_layer_add_up():
    kinds = {"both": {"mask": {"type": "window", "size": 2}}, "alone": {"mask": "none"}, "plain": {}}
    blueprint = resolve(mask="prefix", layers=kinds, pattern=["both", "alone", "plain"], num_layers=3)
    assert [rules(layer) for layer in layers(blueprint)] == [
        ["causal", "prefix", "window"],
        ["causal"],
        ["causal", "prefix"],
    ]
    assert [rules(layer) for layer in layers(resolve(type="encoder", mask="causal"))] == [["causal"]] * 4
    assert [layer.causal for layer in layers(resolve(type="encoder", mask="causal"))] == [True] * 4
    assert not any(layer.causal for layer in layers(resolve(type="encoder", mask="reverse_causal")))


def test_r4_a_kinds_mask_is_laid_over_the_layers():
    blueprint = resolve(
        {"mask": {"type": "window", "size": 4}},
        layers={"a": {"mask": {"size": 2}}, "b": {"mask": ["prefix"]}, "c": {"mask": "none"}},
        pattern=["a", "b", "c"],
        num_layers=3,
    )
    assert [rules(layer) for layer in layers(blueprint)] == [["causal", "window"], ["causal", "prefix"], ["causal"]]
    assert layers(blueprint)[0].mask[1].size == 2


def test_r4_limits_are_anded_and_openings_ored():
    model = build(type="encoder", mask=[{"type": "window", "size": 2}, "global_tokens"])
    marks = torch.tensor([[0, 0, 0, 1]])
    x = torch.arange(4)[None]
    with pytest.raises(Exception, match="this model requires global_attention_mask in every call"):
        model(x)
    base = model(x, global_attention_mask=marks).hidden
    far = model(torch.tensor([[7, 1, 2, 3]]), global_attention_mask=marks).hidden
    assert not torch.allclose(base[0, 3], far[0, 3])  # the marked token sees the first one
    decoder = build(mask="prefix")
    first, second = (decoder(torch.tensor([[1, last, 3]]), prefix_length=torch.tensor([2])).hidden for last in (2, 5))
    assert not torch.allclose(first[0, 0], second[0, 0])  # within the prefix the future is seen
    first, second = (decoder(torch.tensor([[1, 2, last]]), prefix_length=torch.tensor([2])).hidden for last in (3, 5))
    assert torch.allclose(first[0, :2], second[0, :2])  # after it, not


def test_r4_what_cannot_stand_together():
    assert faults({"mask": ["causal", "reverse_causal"]}) == [
        "model.layer.mask[1]: with both causal and reverse_causal in a layer, each token sees only itself"
    ]
    assert faults(mask="reverse_causal") == [
        "model.mask: with both causal and reverse_causal in a layer, each token sees only itself"
    ]
    assert faults(mask=[{"type": "window", "size": 2}, "global_tokens"]) == [
        "model.mask[1]: would show the future to a causal layer; use it in an encoder"
    ]
    with pytest.raises(Exception, match="no part of this model reads prefix_length"):
        build()(torch.arange(3)[None], prefix_length=torch.tensor([1]))


# ----------------------------------------------------------------------------------------------------- R5 per_layer


def test_r5_in_the_layer_it_has_a_value_for_every_layer():
    blueprint = resolve({"feedforward": {"type": "mlp", "d_ff": {"per_layer": [4, 8, 8, 16]}}})
    assert [layer.sublayers[1].config.d_ff for layer in layers(blueprint)] == [4, 8, 8, 16]
    assert len(blueprint.last.layers) == 3
    dropped = resolve({"dropout": {"per_layer": [0, 0.1, 0.2, 0.3]}})
    assert [layer.dropout for layer in layers(dropped)] == [0, 0.1, 0.2, 0.3]


def test_r5_in_a_kind_it_has_a_value_for_each_of_that_kind():
    kinds = {"a": {"mask": {"type": "window", "size": {"per_layer": [2, 4]}}}, "b": {}}
    blueprint = resolve(layers=kinds, pattern=["b", "a"])
    assert [layer.mask[-1].size if len(layer.mask) > 1 else None for layer in layers(blueprint)] == [None, 2, None, 4]
    mixed = resolve({"mask": [{"type": "window", "size": {"per_layer": [1, 2, 3, 4]}}, "prefix"]})
    assert [layer.mask[1].size for layer in layers(mixed)] == [1, 2, 3, 4]


def test_r5_wrong_lengths_and_places():
    assert faults({"feedforward": {"type": "mlp", "d_ff": {"per_layer": [4, 8]}}}) == [
        "model.layer.feedforward.d_ff.per_layer: has 2 values, but `layer` applies to 4 layers"
    ]
    kinds = {"a": {"feedforward": {"d_ff": {"per_layer": [4, 8, 16]}}}, "b": {}}
    assert faults(layers=kinds, pattern=["a", "b"]) == [
        "model.layers.a.feedforward.d_ff.per_layer: has 3 values, but kind 'a' applies to 2 layers"
    ]
    no_parts = "per_layer supports only numbers, words and booleans; to vary parts, use `layers:` and `pattern:`"
    assert faults({"norm": {"per_layer": ["layer_norm", "rms_norm", "rms_norm", "rms_norm"]}}) == [
        f"model.layer.norm: {no_parts}"
    ]
    assert f"model.layer.feedforward.activation.per_layer[0]: {no_parts}" in faults(
        {"feedforward": {"type": "mlp", "d_ff": 4, "activation": {"per_layer": [{"type": "relu"}] * 4}}}
    )
    assert faults({"feedforward": {"type": "mlp", "d_ff": {"per_layer": 4}}}) == [
        "model.layer.feedforward.d_ff: per_layer must be the only key and needs a list: {per_layer: [32, 64]}"
    ]


# ------------------------------------------------------------------------------------------------------- R6 sharing


def test_r6_text_is_copied_and_weights_are_not():
    model = build(layers={"a": {}}, pattern=["a*4"])
    assert len({id(layer) for layer in model.stack("decoder").layers}) == 4


def test_r6_a_shared_layer_is_one_module_for_each_pattern_entry():
    one = build({"shared": True}).stack("decoder")
    assert len({id(layer) for layer in one.layers}) == 1
    groups = build({"shared": True}, layers=KINDS, pattern=["a*2", "b", "a"]).stack("decoder")
    first, second, third, fourth = groups.layers
    assert first is second
    assert len({id(layer) for layer in (first, third, fourth)}) == 3
    turns = build(layers={"a": {"shared": True}, "b": {}}, pattern=["a", "b"]).stack("decoder").layers
    assert turns[0] is turns[2]
    assert turns[1] is not turns[3]
    layer = sum(weight.numel() for weight in first.parameters())
    assert size(one) + 3 * layer == size(build().stack("decoder"))
    assert size(groups) + layer == size(build().stack("decoder"))


def size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize("name", ["attention", "feedforward"])
def test_r6_a_shared_sublayer_leaves_norms_and_the_rest_alone(name):
    stack = build({name: LAYER[name] | {"shared": True}}).stack("decoder")
    other = "feedforward" if name == "attention" else "attention"
    modules = {key: {id(getattr(layer, key)) for layer in stack.layers} for key in (name, other, f"{name}_norm")}
    assert {key: len(found) for key, found in modules.items()} == {name: 1, other: 4, f"{name}_norm": 4}
    assert size(stack) + 3 * size(getattr(stack.layers[0], name)) == size(build().stack("decoder"))


def test_r6_shared_layers_may_differ_by_their_mask_only():
    windows = {"type": "window", "size": {"per_layer": [1, 2, 3, 4]}}
    stack = build({"shared": True, "mask": windows}).stack("decoder")
    assert len({id(layer) for layer in stack.layers}) == 1
    assert len(stack.plan.layers) == 4
    heads = {"type": "multi_head", "num_heads": {"per_layer": [1, 2, 2, 1]}}
    shared = "shares its weights over layers, so per_layer cannot change its options"
    assert faults({"shared": True, "attention": heads}) == [f"model.layer.shared: the layer {shared}, except mask"]
    assert faults({"attention": heads | {"shared": True}}) == [f"model.layer.attention: attention {shared}"]


@looped(
    "changes",
    [
        {"layers": {"a": {}, "b": {}}, "pattern": ["a", ["b", "a"]], "num_layers": 6},
        {"layers": {"a": {}, "b": {}, "c": KINDS["b"]}, "pattern": ["c", ["a", "b*2"], "c*2"], "num_layers": 9},
        {"layers": KINDS, "pattern": ["a", "b", "c"], "num_layers": 8},
        {"layers": {"a": {}, "b": {"shared": False}}, "pattern": ["b", ["a", "b"]], "num_layers": 8},
        {"layers": {"a": {}, "b": {}}, "pattern": ["a*2", "b*2", "a*2"], "num_layers": 6},
        {
            "layers": {"a": {"mask": {"type": "window", "size": {"per_layer": [1, 2, 3]}}}, "b": {}},
            "pattern": ["b", "a"],
            "num_layers": 6,
        },
    ],
)
@looped("shared", ["layer", "attention"])
def test_r6_resolved_text_shares_the_same_weights(changes, shared):
    layer = {"shared": True} if shared == "layer" else {"attention": LAYER["attention"] | {"shared": True}}
    plan = resolve(layer, **changes).last  # looks at the resolved text
    assert len(set(plan.entries)) < len(plan.entries)


def test_r6_one_token_table_for_both_sides():
    model = build(type="encoder_decoder", embedding={"type": "tokens", "shared": True})
    assert model.stack("encoder").embedding.tokens is model.stack("decoder").embedding.tokens
    model = build(type="encoder_decoder")
    assert model.stack("encoder").embedding.tokens is not model.stack("decoder").embedding.tokens


# ------------------------------------------------------------------------------------------------------ R7 position


def test_r7_in_the_stack_it_is_one_part_in_a_layer_each_has_its_own():
    t5 = {"type": "t5_bias", "num_buckets": 8, "max_distance": 16}
    stack = build(position=t5)
    assert [name for name, _ in stack.named_parameters() if "position" in name] == ["decoder.position.0.table.weight"]
    layer = build({"position": t5}, position="none")
    assert [name for name, _ in layer.named_parameters() if "position" in name] == [
        f"decoder.layers.{i}.position.0.table.weight" for i in range(4)
    ]


def test_r7_a_layers_position_is_laid_over_the_stacks():
    kinds = {"a": {"position": {"theta": 500}}, "b": {"position": "alibi"}, "c": {"position": "none"}, "d": {}}
    blueprint = resolve(position={"type": "rotary", "fraction": 0.5}, layers=kinds, pattern=["a", "b", "c", "d"])
    a, b, c, d = (layer.position for layer in layers(blueprint))
    assert (a[0].theta, a[0].fraction) == (500, 0.5)
    assert [config.part.part_name for config in b] == ["alibi"]
    assert (c, d) == ((), None)


def test_r7_none_in_a_layer_leaves_the_inputs_positions_alone():
    positions = {"type": "learned"}
    model = build({"position": "none"}, position=positions)
    plain = build(position=positions)
    plain.load_state_dict(model.state_dict())
    ids = torch.arange(6)[None]
    assert torch.equal(model(ids).hidden, plain(ids).hidden)
    assert model.stack("decoder").position[0].table.weight.shape == (16, 8)


def test_r7_several_positions_stand_together():
    blueprint = resolve(position=["sinusoidal", "alibi"])
    assert [config.part.part_name for config in blueprint.last.position] == ["sinusoidal", "alibi"]
    assert faults(position=["rotary", {"type": "rotary", "theta": 5}]) == [
        "model.position: two positions that rotate queries and keys cannot be combined"
    ]


def test_r7_what_embeds_stands_in_the_stack():
    assert faults({"position": "learned"}) == [
        "model.layer.position: 'learned' is added to the embeddings; set it in the stack, not in a layer"
    ]


def test_r7_positions_fit_the_heads_that_they_serve():
    kinds = {"a": {}, "b": {"attention": {"num_heads": 4}}}
    assert faults(position="t5_bias", layers=kinds, pattern=["a", "b"]) == [
        "model.position: t5_bias has one column per head, but the layers differ in num_heads; "
        "use the same number in all layers"
    ]
    assert faults(position="t5_bias", layers=kinds, pattern=["a", "x"])[0].startswith("model.pattern[1]: unknown kind")
    assert faults(layers={"a": {"attention": {"num_heads": 8}}}, pattern=["a"]) == [
        "model.position: rotary rotates pairs of channels, so head_dim must be even and at least 2, got 1"
    ]
    assert faults({"position": {"fraction": 0.75}}) == [
        "model.layer.position.fraction: rotary rotates pairs of channels, "
        "so 0.75 of head_dim 4 must be even and at least 2, got 3"
    ]
    resolve({"position": "none"}, layers={"a": {"attention": {"num_heads": 8}}}, pattern=["a"])


# ------------------------------------------------------------------------------------------- R8 encoder and decoder


def test_r8_sides_are_laid_over_the_stack_keys():
    blueprint = resolve(
        type="encoder_decoder",
        encoder={"d_model": 12, "num_layers": 2, "layer": {"feedforward": {"d_ff": 24}}},
        decoder={"position": "none", "layers": KINDS, "pattern": ["b"], "final_norm": "none"},
    )
    encoder, decoder = blueprint.encoder, blueprint.decoder
    assert (encoder.d_model, encoder.num_layers, decoder.d_model, decoder.num_layers) == (12, 2, 8, 4)
    assert layers(encoder)[0].sublayers[1].config.d_ff == 24
    assert layers(encoder)[0].sublayers[0].config.num_heads == 2
    assert (len(encoder.position), decoder.position) == (1, ())
    assert (encoder.final_norm is None, decoder.final_norm is None) == (False, True)
    assert [rules(layer) for layer in layers(decoder)] == [["causal", "window"]] * 4
    assert [rules(layer) for layer in layers(encoder)] == [[]] * 2
    assert (decoder.memory_width, encoder.other_depth, decoder.other_depth) == (12, 4, 2)
    assert resolve(type="encoder_decoder", encoder="none") == resolve(type="encoder_decoder")


def test_r8_wrong_sides():
    assert faults(type="encoder_decoder", encoder={"head": "language_model"})[0].startswith(
        "model.encoder.head: unknown option; available: d_model, embedding"
    )
    assert faults(encoder={"num_layers": 2}) == [
        "model.encoder: a model of type 'decoder' has one stack; set its keys in model itself"
    ]
    assert faults(num_layers=GONE) == ["model: needs num_layers"]
    assert faults(d_model=GONE) == ["model: needs d_model"]
    assert faults(type="encoder_decoder", encoder={"d_model": "none"}) == ["model.encoder.d_model: cannot be none"]


# ------------------------------------------------------------------------------------- R9 vocabularies and the ties


def test_r9_one_vocabulary_or_one_on_each_side():
    one = resolve(type="encoder_decoder")
    assert (one.encoder.vocab_size, one.decoder.vocab_size) == (20, 20)
    two = resolve(type="encoder_decoder", vocab_size=GONE, encoder={"vocab_size": 30}, decoder={"vocab_size": 40})
    model = build_model(two)
    assert [model.stack(side).embedding.tokens.num_embeddings for side in ("encoder", "decoder")] == [30, 40]
    assert model.head.output.weight.shape == (40, 8)
    assert faults(vocab_size=GONE, head="none") == [
        "model.embedding: tokens needs a vocab_size in the model: a number or `tokenizer`"
    ]


def test_r9_nothing_is_tied_unless_said():
    model = build()
    assert model.head.output.weight is not model.stack("decoder").embedding.tokens.weight
    masked = build(type="encoder", head="masked_lm")
    assert masked.head.output.weight is not masked.stack("encoder").embedding.tokens.weight
    tied = build(
        head={"type": "language_model", "tied": True}, heads={"more": {"type": "language_model", "tied": True}}
    )
    assert tied.head.output.weight is tied.stack("decoder").embedding.tokens.weight
    assert tied.heads["more"].output.weight is tied.head.output.weight


def test_r9_a_table_has_one_size():
    shared = {"type": "tokens", "shared": True}
    assert faults(type="encoder_decoder", embedding=shared, encoder={"vocab_size": 30}) == [
        "model.embedding.shared: a shared table needs a single vocab_size, got 30 (<mapping>) and 20 (<mapping>)"
    ]
    assert faults(type="encoder_decoder", embedding=shared, encoder={"d_model": 16}) == [
        "model.embedding.shared: a shared table needs a single width, got 16 (<mapping>) and 8 (<mapping>)"
    ]
    assert faults(type="encoder_decoder", embedding=shared, decoder={"embedding": {"d_embedding": 4}}) == [
        "model.embedding.shared: a shared table needs a single width, got 8 (<mapping>) and 4 (<mapping>)"
    ]
    narrow = shared | {"d_embedding": 4}
    model = build(type="encoder_decoder", embedding=narrow, encoder={"d_model": 16})  # two widths, one table
    assert model.stack("encoder").embedding.tokens is model.stack("decoder").embedding.tokens
    assert faults(embedding=shared) == [
        "model.embedding.shared: the model has only one stack; there is no other token table to share"
    ]
    assert faults(type="encoder_decoder", decoder={"embedding": shared}) == [
        "model.decoder.embedding.shared: shared only in the decoder; set it in model.embedding, for both stacks"
    ]


def test_r9_a_tie_needs_a_table():
    assert faults(embedding="none", head={"type": "language_model", "tied": True}) == [
        "model.head.tied: tied to a token table, but the decoder has none"
    ]


# --------------------------------------------------------------------------------------------------- R10 d_embedding


def test_r10_table_segments_positions_and_norm_have_the_width_of_the_table():
    embedding = {"type": "tokens", "d_embedding": 4, "segments": 2, "norm": True}
    head = {"type": "masked_lm", "tied": True}
    model = build(type="encoder", embedding=embedding, position="learned", head=head)
    shapes = {name: list(weight.shape) for name, weight in model.named_parameters() if ".layers." not in name}
    assert {name: shape for name, shape in shapes.items() if "final" not in name and "bias" not in name} == {
        "encoder.embedding.tokens.weight": [20, 4],
        "encoder.embedding.segments.weight": [2, 4],
        "encoder.embedding.norm.weight": [4],
        "encoder.embedding.projection.weight": [8, 4],
        "encoder.position.0.table.weight": [16, 4],
        "head.dense.weight": [4, 8],
        "head.norm.weight": [4],
    }
    assert model.head.output.weight is model.stack("encoder").embedding.tokens.weight
    late = build(type="encoder", embedding=embedding | {"norm_after_projection": True}, head="none")
    assert list(part(late, "encoder.embedding.norm").weight.shape) == [8]


# ----------------------------------------------------------------------------------------------------- R11 sublayers


def named(layer: LayerPlan) -> list[str]:
    return [sublayer.name for sublayer in layer.sublayers]


def test_r11_a_layer_has_what_it_describes_in_one_order():
    swapped = dict(reversed(LAYER.items()))
    assert named(layers(resolve(swapped))[0]) == ["attention", "feedforward"]
    pair = resolve(type="encoder_decoder")
    assert named(layers(pair.encoder)[0]) == ["attention", "feedforward"]
    assert named(layers(pair.decoder)[0]) == ["attention", "cross_attention", "feedforward"]
    assert named(layers(resolve({"attention": "none"}, position="none"))[0]) == ["feedforward"]
    assert named(layers(resolve({"feedforward": "none"}))[0]) == ["attention"]


def test_r11_another_order_and_names_repeated():
    order = ["feedforward", "attention", "feedforward"]
    macaron = resolve({"sublayers": order, "feedforward_2": {"d_ff": 32}})
    assert named(layers(macaron)[0]) == ["feedforward", "attention", "feedforward_2"]
    configs = [sublayer.config for sublayer in layers(macaron)[0].sublayers]
    assert (configs[0].d_ff, configs[2].d_ff, configs[2].part.part_name) == (16, 32, "mlp")
    stack = build({"sublayers": order}).stack("decoder")
    assert stack.layers[0].feedforward is not stack.layers[0].feedforward_2
    assert resolve({"sublayers": "none"}) == resolve()


def test_r11_an_encoder_leaves_the_decoders_cross_attention_out():
    order = ["attention", "cross_attention", "attention", "feedforward"]
    pair = resolve({"sublayers": order, "cross_attention_norm": "rms_norm"}, type="encoder_decoder")
    assert named(layers(pair.encoder)[0]) == ["attention", "attention_2", "feedforward"]
    assert named(layers(pair.decoder)[0]) == ["attention", "cross_attention", "attention_2", "feedforward"]


def test_r11_wrong_sublayers():
    assert faults({"sublayers": ["attention"]}) == [
        "model.layer.sublayers: does not contain feedforward, which the layer sets; add it, or set feedforward: none"
    ]
    assert faults({"sublayers": ["attention", "feedforward", "mixer"]}) == [
        "model.layer.sublayers: contains mixer, but the layer has no mixer"
    ]
    assert faults({"sublayers": ["attention", "feedforward", "mlp"]})[0] == (
        "model.layer.sublayers[2]: 'mlp' is not a sublayer; expected attention, mixer, cross_attention, feedforward"
    )
    assert faults({"feedforward_2": {"d_ff": 32}}) == [
        "model.layer.feedforward_2: `sublayers` contains feedforward fewer than 2 times"
    ]
    assert faults({"feedforward_2_norm": "rms_norm"}) == [
        "model.layer.feedforward_2_norm: `sublayers` contains feedforward fewer than 2 times"
    ]
    assert faults({"attention": "none", "feedforward": "none"}) == [
        "model.layer: a layer needs at least one sublayer: attention, mixer, cross_attention, feedforward"
    ]


# --------------------------------------------------------------------------------------------------------- R12 norms


def test_r12_true_is_the_stacks_norm_wherever_one_stands():
    blueprint = resolve(
        {"attention": LAYER["attention"] | {"qk_norm": True}},
        type="encoder",
        embedding={"type": "tokens", "norm": True},
        final_norm=True,
        head={"type": "masked_lm", "norm": True},
    )
    stack = blueprint.last
    layer = layers(stack)[0]
    assert {
        norm.eps
        for norm in (layer.norm, layer.sublayers[0].norm, layer.sublayers[0].config.qk_norm, stack.embedding.norm)
    } | {stack.final_norm.eps, blueprint.head.norm.eps} == {1e-3}


def test_r12_a_mapping_is_laid_over_it_another_type_replaces_it_and_none_is_none():
    norms = [
        resolve(embedding={"type": "tokens", "norm": value}).last.embedding.norm
        for value in ({"bias": False}, "layer_norm", "rms_norm", {"type": "rms_norm"}, "none")
    ]
    assert (norms[0].eps, norms[0].bias) == (1e-3, False)
    assert norms[1].eps == 1e-3  # the same type merges
    assert [norm.eps for norm in norms[2:4]] == [1e-6] * 2
    assert norms[4] is None
    assert resolve().last.embedding.norm is None  # left out: none
    assert resolve(type="encoder", head="masked_lm").head.norm.eps == 1e-3  # left out: BERT's head has one, the stack's
    assert resolve(type="encoder", head={"type": "masked_lm", "norm": "none"}).head.norm is None


def test_r12_final_norm():
    assert resolve().last.final_norm.eps == 1e-3
    assert resolve({"residual": "post_norm"}).last.final_norm is None
    assert resolve({"residual": "post_norm"}, final_norm=True).last.final_norm.eps == 1e-3
    assert resolve(final_norm={"bias": False}).last.final_norm.bias is False
    assert resolve(final_norm="none").last.final_norm is None
    mixed = {"a": {"residual": "post_norm"}, "b": {}}
    assert resolve(layers=mixed, pattern=["b", "a"]).last.final_norm is None  # the last layer's layout decides
    assert resolve(layers=mixed, pattern=["a", "b"]).last.final_norm is not None


def test_r12_true_without_a_norm_to_mean():
    assert faults({"norm": "none"}, final_norm=True) == [
        "model.final_norm: true means the stack's norm, but layer.norm is not set"
    ]
    assert faults({"norm": "none"}, embedding={"type": "tokens", "norm": True}) == [
        "model.embedding.norm: true means the stack's norm, but layer.norm is not set"
    ]
    assert faults({"norm": GONE}) == [
        "model.layer.residual: the layout 'pre_norm' needs a norm; set norm in the layer, or norm: none"
    ]


# ------------------------------------------------------------------------------------------------ R13 a sublayer's norm


def test_r13_one_sublayers_norm():
    layer = layers(resolve({"attention_norm": "none", "feedforward_norm": {"bias": False}}))[0]
    assert layer.sublayers[0].norm is None
    assert (layer.sublayers[1].norm.eps, layer.sublayers[1].norm.bias) == (1e-3, False)
    built = build({"attention_norm": "rms_norm"}).stack("decoder").layers[0]
    assert type(built.attention_norm).__name__ == "RMSNorm"
    assert type(built.feedforward_norm).__name__ == "LayerNorm"
    order = {"sublayers": ["feedforward", "attention", "feedforward"]}
    both = layers(resolve(order | {"feedforward_norm": "none"}))[0]
    assert [sublayer.norm is None for sublayer in both.sublayers] == [True, False, True]
    second = layers(resolve(order | {"feedforward_2_norm": "none"}))[0]
    assert [sublayer.norm is None for sublayer in second.sublayers] == [False, False, True]


def test_r13_refused_where_one_norm_serves_all():
    assert faults({"residual": "parallel", "attention_norm": "none"}) == [
        "model.layer.attention_norm: the layout 'parallel' has one norm for all sublayers"
    ]
    assert faults({"mixer_norm": "none"}) == ["model.layer.mixer_norm: the layer has no mixer"]


# --------------------------------------------------------------------------------------------------------- R14 heads


def test_r14_head_and_heads():
    heads = {"class": {"type": "classifier", "num_classes": 3, "reads": "encoder"}, "gone": "none", "vectors": "hidden"}
    model = build(type="encoder_decoder", heads=heads)
    out = model(torch.arange(5)[None], decoder_input_ids=torch.arange(4)[None])
    assert out.logits.shape == (1, 4, 20)
    assert {name: list(value.shape) for name, value in out.heads.items()} == {"class": [1, 3], "vectors": [1, 4, 8]}
    assert torch.equal(out.heads["vectors"], out.hidden)
    assert len(build(heads="none").heads) == len(build().heads) == 0


def test_r14_a_head_reads_a_stack_that_is_there():
    assert faults(head={"type": "language_model", "reads": "encoder"}) == [
        "model.head.reads: reads the encoder, which this model does not have"
    ]
    assert faults(heads={"x": {"type": "hidden", "reads": "encodr"}}) == [
        "model.heads.x.reads: expected 'encoder' or 'decoder', got 'encodr'"
    ]


@looped("name", ["a.b", "", "forward", "two words"])
def test_r14_names_of_heads_are_plain_words(name):
    assert faults(heads={name: "hidden"}) == [
        f"model.heads.{name}: '{name}' cannot be the name of a head; use a plain word"
    ]


# -------------------------------------------------------------------------------------------------------- R15 memory


@pytest.mark.parametrize("type", ["encoder", "decoder"])
def test_r15_memory_from_outside_has_its_own_width(type):
    model = build(type=type, embedding="none", head="none", memory={"d_model": 6}, vocab_size=GONE)
    stack = model.stack(type)
    assert stack.layers[0].cross_attention.key.weight.shape == (8, 6)
    assert stack.layers[0].cross_attention.query.weight.shape == (8, 8)
    vectors, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    out = model(inputs_embeds=vectors, encoder_hidden_states=memory)
    assert (out.hidden.shape, out.logits) == ((2, 3, 8), None)
    assert not torch.allclose(out.hidden, model(inputs_embeds=vectors, encoder_hidden_states=memory + 1).hidden)
    masked = model(
        inputs_embeds=vectors, encoder_hidden_states=memory, encoder_attention_mask=torch.tensor([[1, 1, 0, 0, 0]] * 2)
    )
    torch.testing.assert_close(masked.hidden, model(inputs_embeds=vectors, encoder_hidden_states=memory[:, :2]).hidden)


def test_r15_wrong_memories():
    assert faults(memory={"width": 3}) == [
        "model.memory: memory needs a width, such as memory: {d_model: 768}",
        "model.memory.width: unknown option",
    ]
    assert faults(type="encoder_decoder", memory={"d_model": 3}) == [
        "model.memory: the decoder's memory is the encoder's output; remove memory, as it is for models with one stack"
    ]
    assert resolve(memory="none") == resolve()


# ----------------------------------------------------------------------------------------------- R16 cross-attention


def test_r16_cross_attention_is_laid_over_attention():
    attention = {"type": "multi_head", "num_heads": 4, "head_dim": 4, "bias": False, "qk_norm": True}
    layer = layers(resolve({"attention": attention, "cross_attention": {"num_heads": 2}}, memory={"d_model": 6}))[0]
    config = layer.sublayers[1].config
    assert (config.num_heads, config.bias, config.qk_norm.eps) == (2, False, 1e-3)
    assert layer.sublayers[1].memory
    same = layers(resolve({"attention": attention}, memory={"d_model": 6}))[0]
    assert same.sublayers[1].config == same.sublayers[0].config


def test_r16_it_is_laid_once_before_the_kinds():
    kinds = {
        "cross": {"attention": "none"},
        "self": {"cross_attention": "none"},
        "few": {"attention": {"num_heads": 1}},
    }
    blueprint = resolve(memory={"d_model": 6}, layers=kinds, pattern=["cross", "self", "few"], num_layers=3)
    cross, alone, few = layers(blueprint)
    assert named(cross) == ["cross_attention", "feedforward"]
    assert named(alone) == ["attention", "feedforward"]
    assert [sublayer.config.num_heads for sublayer in few.sublayers[:2]] == [1, 2]


def test_r16_it_has_no_position_and_no_mask():
    plain = {"embedding": "none", "head": "none", "vocab_size": GONE, "memory": {"d_model": 8}}
    model = build({"cross_attention": LAYER["attention"]}, position="alibi", **plain)
    vectors, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    out = model(inputs_embeds=vectors, encoder_hidden_states=memory).hidden
    turned = model(inputs_embeds=vectors, encoder_hidden_states=memory.flip(1)).hidden
    torch.testing.assert_close(out, turned)  # the memory is a set: every query sees all of it alike


def test_r16_without_memory_it_is_an_error():
    text = "there is no memory to attend to; set memory: {d_model: ...} in the model"
    assert faults({"cross_attention": {"num_heads": 1}}) == [f"model.layer.cross_attention: {text}"]
    assert faults(layers={"a": {"cross_attention": {"num_heads": 1}}}, pattern=["a"]) == [
        f"model.layers.a.cross_attention: {text}"
    ]
    assert resolve({"cross_attention": "none"}) == resolve()


# ------------------------------------------------------------------------------------------------------- R17 dropout


def test_r17_dropout_is_zero_and_never_inherited():
    blueprint = resolve({"dropout": 0.1}, final_dropout=0.2, embedding={"type": "tokens", "dropout": 0.3})
    layer = layers(blueprint)[0]
    assert (layer.dropout, blueprint.last.final_dropout, blueprint.last.embedding.dropout) == (0.1, 0.2, 0.3)
    assert (layer.sublayers[0].config.dropout, layer.sublayers[1].config.dropout, blueprint.head.dropout) == (0, 0, 0)
    plain = resolve()
    assert (layers(plain)[0].dropout, plain.last.final_dropout, plain.last.embedding.dropout) == (0, 0, 0)


@looped(
    "changes",
    [
        {"layer": {"dropout": 0.5}},
        {"layer": {"attention": LAYER["attention"] | {"dropout": 0.5}}},
        {"layer": {"feedforward": LAYER["feedforward"] | {"dropout": 0.5}}},
        {"embedding": {"type": "tokens", "dropout": 0.5}},
        {"final_dropout": 0.5},
        {"head": {"type": "language_model", "dropout": 0.5}},
    ],
)
def test_r17_each_dropout_drops_where_it_stands_and_only_while_training(changes):
    model, ids = build(**changes), torch.arange(8)[None]
    assert torch.equal(model.eval()(ids).logits, build()(ids).logits)
    torch.manual_seed(0)
    assert not torch.equal(model.train()(ids).logits, model(ids).logits)


# -------------------------------------------------------------------------------------------------------- R18 biases


def test_r18_biases_all_none_or_named():
    def biases(value: Any) -> list[str]:
        attention = build({"attention": LAYER["attention"] | {"bias": value}}).stack("decoder").layers[0].attention
        return [name for name in ("query", "key", "value", "output") if getattr(attention, name).bias is not None]

    assert biases(True) == ["query", "key", "value", "output"]
    assert biases(False) == biases([]) == []
    assert biases(["query", "key", "value"]) == ["query", "key", "value"]
    head = build(head={"type": "language_model", "bias": "frozen"}).head
    assert not head.output.bias.requires_grad
    assert head.output.bias.abs().sum() == 0
    masked = build(type="encoder", head={"type": "masked_lm", "bias": ["output"]}).head
    assert (masked.dense.bias is None, masked.output.bias is None) == (True, False)
    assert faults({"feedforward": LAYER["feedforward"] | {"bias": ["upp"]}}) == [
        "model.layer.feedforward.bias: 'upp' is not a projection of this part; available: up, down"
    ]


# -------------------------------------------------------------------------------------------------------- R19 scales


@looped(("scale", "factor"), [("none", 1), (3, 3), (0.5, 0.5), ("sqrt_d_model", 8**0.5), ("1/sqrt_d_model", 8**-0.5)])
def test_r19_scales(scale, factor):
    plain, scaled = build(), build(head={"type": "language_model", "scale": scale})
    ids = torch.arange(4)[None]
    torch.testing.assert_close(scaled(ids).logits, plain(ids).logits * factor)


def test_r19_no_arithmetic():
    assert faults(head={"type": "language_model", "scale": "d_model ** -0.5"}) == [
        "model.head.scale: expected a number or 'sqrt_d_model' or '1/sqrt_d_model', got 'd_model ** -0.5'"
    ]


# ------------------------------------------------------------------------------------------------------- R20 merging


def over(overrides: dict[str, Any], **changes: Any) -> Blueprint:
    return load_recipe(
        recipe(**changes), overrides={f"model.{key}": value for key, value in overrides.items()}
    ).blueprint()


def test_r20_the_same_type_merges():
    for value in ({"num_kv_heads": 1}, {"type": "multi_head", "num_kv_heads": 1}):
        config = layers(over({"layer.attention": value}))[0].sublayers[0].config
        assert (config.num_heads, config.num_kv_heads) == (2, 1)
    assert layers(over({"layer.attention": "multi_head"}))[0].sublayers[0].config.num_heads == 2


def test_r20_another_type_replaces_the_whole_part():
    blueprint = over(
        {"layer.feedforward": {"type": "glu", "d_ff": 24}},
        layer={"feedforward": {"type": "mlp", "d_ff": 16, "bias": False}},
    )
    config = layers(blueprint)[0].sublayers[1].config
    assert (config.part.part_name, config.d_ff, config.bias) == ("glu", 24, True)


def test_r20_a_missing_option_that_was_dropped_is_named():
    with pytest.raises(RecipeError) as caught:
        over({"layer.feedforward": "glu"})
    assert str(caught.value) == (
        "<overrides>: model.layer.feedforward: needs the option 'd_ff' (dropped with the other options of the "
        "previous type; it was set at <mapping>)"
    )


def test_r20_the_models_type_drops_nothing():
    blueprint = over({"type": "encoder", "head": "masked_lm"})
    assert blueprint.encoder.num_layers == 4
    assert over({"type": "encoder_decoder"}).encoder.d_model == 8
    with pytest.raises(RecipeError, match="a model of type 'decoder' has one stack"):
        over({"type": "decoder"}, type="encoder_decoder", encoder={"num_layers": 2})


def test_r20_lists_are_replaced_whole_and_none_takes_out():
    blueprint = over({"mask": ["prefix"]}, mask=[{"type": "window", "size": 2}])
    assert rules(layers(blueprint)[0]) == ["causal", "prefix"]
    assert over(
        {"layer.attention.num_kv_heads": None},
        layer={"attention": {"type": "multi_head", "num_heads": 2, "num_kv_heads": 1}},
    ) == over({})
    gone = over({"heads.x": "none"}, heads={"x": "hidden", "y": "hidden"})
    assert [name for name, _ in gone.heads] == ["y"]
    optional = ("layers", "pattern", "heads", "head", "position", "mask", "memory", "max_length", "special_ids")
    over(dict.fromkeys(optional, "none"))


def test_r20_what_cannot_be_none():
    for key, expected in {
        "init": "model.init: cannot be none; remove init to use the default, xavier",
        "type": "model.type: expected the name of a model, or a mapping with its type, got none",
        "d_model": "model.d_model: cannot be none",
        "num_layers": "model.num_layers: cannot be none",
    }.items():
        assert faults(**{key: "none"}) == [expected]


# --------------------------------------------------------------------------------------------------- R21 temperature


class Doubled(Position):
    """A temperature of two at every position."""

    def temperature(self, positions: Tensor) -> Tensor:
        return torch.full(positions.shape, 2.0)


def test_r21_temperatures_multiply():
    places = torch.arange(3)[None]
    twice = Placement([Doubled(Doubled.Config(), None), Doubled(Doubled.Config(), None)], places, places)  # type: ignore[arg-type]
    assert twice.temperature().tolist() == [[4, 4, 4]]
    assert Placement([], places, places).temperature() is None
    assert Doubled.hooks() == {"temperature"}


def test_r21_a_temperature_is_a_factor_on_the_scores():
    model, ids = build(position="none"), torch.arange(5)[None]
    twice = build({"attention": LAYER["attention"] | {"scale": 2 * 4**-0.5}}, position="none")
    twice.load_state_dict(model.state_dict())
    plain = model(ids).hidden
    stack = model.stack("decoder")
    stack._stack_parts.append(Doubled(Doubled.Config(), None))  # type: ignore[arg-type]
    torch.testing.assert_close(model(ids).hidden, twice(ids).hidden)
    assert not torch.allclose(model(ids).hidden, plain)
