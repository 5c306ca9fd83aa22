"""The grammar of `model:`, rule by rule (R1 to R21 of the recipe language)."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tfkit.components.position import Position
from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.context import Placement
from tfkit.core.errors import Place, RecipeError
from tfkit.models import Model, build_model
from tfkit.recipe.architecture.prepare import expand, shortest
from tfkit.recipe.load import load_recipe
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.source import from_value

from ..sampling import looped
from .small import GONE, HEADS, MLP, faults, read_again, small

EPS = {"type": "layer_norm", "eps": 1e-3}
KINDS = {"a": {}, "b": {"mask": {"type": "window", "size": 2}}, "c": {"feedforward": {"d_ff": 32}}}
PAIR = {"type": "encoder_decoder"}


def recipe(layer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    model = {"max_length": 16, "num_layers": 4, "position": "rotary"} | changes
    return small({"norm": EPS} | (layer or {}), **model)


def resolve(layer: dict[str, Any] | None = None, **changes: Any) -> Blueprint:
    """The Blueprint, after a look that the resolved text means the same."""
    loaded = load_recipe(recipe(layer, **changes))
    assert read_again(loaded).blueprint() == loaded.blueprint()
    return loaded.blueprint()


def build(layer: dict[str, Any] | None = None, **changes: Any) -> Model:
    return build_model(resolve(layer, **changes))


def layers(plan: StackPlan | Blueprint) -> list[LayerPlan]:
    """Each layer in order."""
    plan = plan.last if isinstance(plan, Blueprint) else plan
    return [plan.layers[kind] for kind in plan.order]


def letters(blueprint: Blueprint) -> str:
    """The layers in letters: those of KINDS, distinguished by what they change."""
    found = ""
    for layer in layers(blueprint):
        window, wide = "window" in rules(layer), getattr(layer.sublayers[-1].config, "d_ff", 0) == 32
        found += "d" if window and wide else "b" if window else "c" if wide else "a"
    return found


def rules(layer: LayerPlan) -> list[str]:
    return [rule.part.part_name for rule in layer.mask]


def named(layer: LayerPlan) -> list[str]:
    return [sublayer.name for sublayer in layer.sublayers]


def size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


NO_PARTS = "per_layer supports only numbers, words and booleans; to vary parts, use `layers:` and `pattern:`"
SHARES = "shares its weights over layers, so per_layer cannot change its options"
NO_MEMORY = "there is no memory to attend to; set memory: {d_model: ...} in the model"
FEWER = "`sublayers` contains feedforward fewer than 2 times"
ODD = "rotary rotates pairs of channels, so"
TABLE = {"type": "tokens", "shared": True}
WIDTH = "embedding.shared: a shared table needs a single width, got"


def patterned(pattern: Any, num_layers: Any = 4) -> dict[str, Any]:
    return {"layers": KINDS, "pattern": pattern, "num_layers": num_layers}


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # R1 patterns
    ({}, patterned(["a", "b", "c"], 2), "pattern: a single pass of the pattern has 3 layers, but num_layers is 2"),
    ({}, patterned(["a", ["b", "c"], "a"], 3), "pattern: a single pass of the pattern has 4 layers, but num_layers is"),
    ({}, patterned(["a", ["b"]], GONE), "pattern: an inner list repeats to fill num_layers; set num_layers"),
    ({}, patterned([["a"], ["b"]]), "pattern[1]: a pattern can have only one inner list, the kinds to repeat"),
    ({}, patterned(["a", []]), "pattern[1]: an inner list needs kinds to repeat, such as [local*5, global]"),
    ({}, patterned([]), "pattern: expected a list of kinds, such as [local*5, global]"),
    ({}, patterned("a"), "pattern: expected a list of kinds, such as [local*5, global]"),
    ({}, patterned(["a", "d"]), "pattern[1]: unknown kind 'd'; `layers:` names a, b, c"),
    ({}, patterned(["a+d"]), "pattern[0]: unknown kind 'd'; `layers:` names a, b, c"),
    ({}, patterned(["a*0"]), "pattern[0]: expected a count from 1 to 10,000 after *, got 0"),
    ({}, patterned(["a-b"]), "pattern[0]: expected a kind, such as local, local*3 or global+first"),
    ({}, patterned([3]), "pattern[0]: expected a kind, such as local, local*3 or global+first"),
    ({}, patterned(["a*6000", "b*6000"], GONE), "pattern: a single pass of the pattern has 12,000 layers; a stack has"),
    ({}, {"layers": KINDS | {"b": "none"}, "pattern": ["a", "b"]}, "pattern[1]: unknown kind 'b'; `layers:` names a,"),
    # R5 per_layer
    ({"feedforward": MLP | {"d_ff": {"per_layer": [4, 8]}}}, {},
     "layer.feedforward.d_ff.per_layer: has 2 values, but `layer` applies to 4 layers"),
    ({}, {"layers": {"a": {"feedforward": {"d_ff": {"per_layer": [4, 8, 16]}}}, "b": {}}, "pattern": ["a", "b"]},
     "layers.a.feedforward.d_ff.per_layer: has 3 values, but kind 'a' applies to 2 layers"),
    ({"norm": {"per_layer": ["layer_norm"] * 4}}, {}, f"layer.norm: {NO_PARTS}"),
    ({"feedforward": MLP | {"activation": {"per_layer": [{"type": "relu"}, "relu", "relu", "relu"]}}}, {},
     f"layer.feedforward.activation.per_layer[0]: {NO_PARTS}"),
    ({"feedforward": MLP | {"d_ff": {"per_layer": 4}}}, {},
     "layer.feedforward.d_ff: per_layer must be the only key and needs a list: {per_layer: [32, 64]}"),
    # R6 sharing
    ({"shared": True, "attention": HEADS | {"num_heads": {"per_layer": [1, 2, 2, 1]}}}, {},
     f"layer.shared: the layer {SHARES}, except mask"),
    ({"attention": HEADS | {"num_heads": {"per_layer": [1, 2, 2, 1]}, "shared": True}}, {},
     f"layer.attention: attention {SHARES}"),
    # R7 positions
    ({}, {"position": ["rotary", {"type": "rotary", "theta": 5}]}, "position: two positions that rotate queries and"),
    ({"position": "learned"}, {}, "layer.position: 'learned' is added to the embeddings; set it in the stack, not in"),
    ({}, {"position": "t5_bias", "layers": {"a": {}, "b": {"attention": {"num_heads": 4}}}, "pattern": ["a", "b"]},
     "position: t5_bias has one column per head, but the layers differ in num_heads; use the same number in all layer"),
    ({}, {"position": "t5_bias", "layers": {"a": {}}, "pattern": ["a", "x"]}, "pattern[1]: unknown kind"),
    ({}, {"layers": {"a": {"attention": {"num_heads": 8}}}, "pattern": ["a"]},
     f"position: {ODD} head_dim must be even and at least 2, got 1"),
    ({"position": {"fraction": 0.75}}, {},
     f"layer.position.fraction: {ODD} 0.75 of head_dim 4 must be even and at least 2, got 3"),
    # R8 sides
    ({}, PAIR | {"encoder": {"head": "language_model"}}, "encoder.head: unknown option; available: d_model, embedding"),
    ({}, {"encoder": {"num_layers": 2}}, "encoder: a model of type 'decoder' has one stack; set its keys in model it"),
    ({}, PAIR | {"encoder": {"d_model": "none"}}, "encoder.d_model: cannot be none"),
    # R9 tables and ties
    ({}, PAIR | {"embedding": TABLE, "encoder": {"d_model": 16}}, f"{WIDTH} 16 (<mapping>) and 8 (<mapping>)"),
    ({}, PAIR | {"embedding": TABLE, "decoder": {"embedding": {"d_embedding": 4}}}, f"{WIDTH} 8 (<mapping>) and 4 ("),
    ({}, {"embedding": TABLE}, "embedding.shared: the model has only one stack; there is no other token table to shar"),
    ({}, PAIR | {"decoder": {"embedding": TABLE}}, "decoder.embedding.shared: shared only in the decoder; set it in"),
    ({}, {"embedding": "none", "head": {"type": "language_model", "tied": True}}, "head.tied: tied to a token table,"),
    # R11 sublayers
    ({"sublayers": ["attention"]}, {}, "layer.sublayers: does not contain feedforward, which the layer sets; add it,"),
    ({"sublayers": ["attention", "feedforward", "mixer"]}, {}, "layer.sublayers: contains mixer, but the layer has no"),
    ({"sublayers": ["attention", "feedforward", "mlp"]}, {}, "layer.sublayers[2]: 'mlp' is not a sublayer; expected a"),
    ({"feedforward_2": {"d_ff": 32}}, {}, f"layer.feedforward_2: {FEWER}"),
    ({"feedforward_2_norm": "rms_norm"}, {}, f"layer.feedforward_2_norm: {FEWER}"),
    ({"attention": "none", "feedforward": "none"}, {}, "layer: a layer needs at least one sublayer: attention, mixer,"),
    # R12, R13 norms
    ({"norm": "none"}, {"final_norm": True}, "final_norm: true means the stack's norm, but layer.norm is not set"),
    ({"norm": "none"}, {"embedding": {"type": "tokens", "norm": True}}, "embedding.norm: true means the stack's norm,"),
    ({"residual": "parallel", "attention_norm": "none"}, {}, "layer.attention_norm: the layout 'parallel' has one nor"),
    ({"mixer_norm": "none"}, {}, "layer.mixer_norm: the layer has no mixer"),
    # R14 heads
    ({}, {"heads": {"x": {"type": "hidden", "reads": "encodr"}}}, "heads.x.reads: expected 'encoder' or 'decoder', go"),
    *(({}, {"heads": {name: "hidden"}}, f"heads.{name}: '{name}' cannot be the name of a head; use a plain word")
      for name in ("a.b", "", "forward", "two words")),
    # R15, R16 memory
    ({}, {"memory": {"width": 3}}, "memory: memory needs a width, such as memory: {d_model: 768}\nmemory.width: unkno"),
    ({}, PAIR | {"memory": {"d_model": 3}}, "memory: the decoder's memory is the encoder's output; remove memory, as"),
    ({"cross_attention": {"num_heads": 1}}, {}, f"layer.cross_attention: {NO_MEMORY}"),
    ({}, {"layers": {"a": {"cross_attention": {"num_heads": 1}}}, "pattern": ["a"]},
     f"layers.a.cross_attention: {NO_MEMORY}"),
    # R18, R19 biases and scales
    ({"feedforward": MLP | {"bias": ["upp"]}}, {}, "layer.feedforward.bias: 'upp' is not a projection of this part; a"),
    ({}, {"head": {"type": "language_model", "scale": "d_model ** -0.5"}},
     "head.scale: expected a number or 'sqrt_d_model' or '1/sqrt_d_model', got 'd_model ** -0.5'"),
    # R20 what cannot be none
    ({}, {"init": "none"}, "init: cannot be none; remove init to use the default, xavier"),
    ({}, {"type": "none"}, "type: expected the name of a model, or a mapping with its type, got none"),
    ({}, {"d_model": "none"}, "d_model: cannot be none"),
    ({}, {"num_layers": "none"}, "num_layers: cannot be none"),
]  # fmt: skip


@looped(("layer", "changes", "expected"), WRONG)
def test_what_is_wrong_is_refused_at_its_key(layer, changes, expected):
    starts = [f"model.{start}" for start in expected.split("\n")]
    found = faults(recipe(layer, **changes))
    assert [fault[: len(start)] for fault, start in zip(found, starts, strict=True)] == starts


@looped(
    ("pattern", "num_layers", "expected"),
    [
        (["a", "b"], 4, "abab"),
        (["a", "b"], 5, "ababa"),  # the last turn is cut
        (["a*2", "b"], 4, "aaba"),
        (["a*3", "b*2"], 5, "aaabb"),
        (["a", ["b"]], 4, "abbb"),
        (["a", ["b"], "c"], 3, "abc"),
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
    assert letters(resolve(**patterned(pattern, num_layers))) == expected


def test_r2_kinds_are_laid_over_the_layer_in_order():
    kinds = {"wide": {"feedforward": {"d_ff": 32, "activation": "gelu"}}, "flat": {"feedforward": {"d_ff": 8}}}
    found = layers(resolve(layers=kinds, pattern=["wide+flat", "flat+wide", "flat", "wide"]))
    widths = [(one.sublayers[1].config.d_ff, one.sublayers[1].config.activation.part.part_name) for one in found]
    assert widths == [(8, "gelu"), (32, "gelu"), (8, "relu"), (32, "gelu")]
    assert all(layer.sublayers[0].config.num_heads == 2 for layer in found)


@looped(
    ("kinds", "once", "pattern"),
    [
        ("llllg", 0, ["l*4", "g"]),
        ("lglgl", 0, ["l", "g"]),
        ("ggg", 0, ["g"]),
        ("dllgllg", 1, ["d", ["l*2", "g"]]),
        ("ddlglg", 2, ["d*2", ["l", "g"]]),
        ("dd", 2, ["d"]),
        ("dlg", 0, ["d", "l", "g"]),
    ],
)
def test_the_shortest_pattern(kinds: str, once: int, pattern: list[object]) -> None:
    assert shortest(kinds, once) == pattern


@looped("seed", range(40))
def test_a_pattern_gives_the_layers_that_it_was_made_of(seed: int) -> None:
    draw = random.Random(seed)
    part = [draw.choice("abc") for _ in range(draw.randint(1, 6))]
    kinds = (part * draw.randint(1, 4) + part[: draw.randint(0, len(part))])[: draw.randint(1, 30)]
    once = draw.randint(0, len(kinds))
    faults = Faults()
    node, _ = from_value(shortest(kinds, once), Place("<mapping>"), "model.pattern")
    entries = expand(node, len(kinds), "abc", faults)
    assert [entry.kinds for entry in entries] == [(kind,) for kind in kinds] and not faults.errors


def test_r4_masks_of_type_stack_and_layer_add_up():
    kinds = {"both": {"mask": {"type": "window", "size": 2}}, "alone": {"mask": "none"}, "plain": {}}
    blueprint = resolve(mask="prefix", layers=kinds, pattern=["both", "alone", "plain"], num_layers=3)
    assert list(map(rules, layers(blueprint))) == [["causal", "prefix", "window"], ["causal"], ["causal", "prefix"]]
    encoder = layers(resolve(type="encoder", mask="causal"))
    assert [(rules(layer), layer.causal) for layer in encoder] == [(["causal"], True)] * 4
    assert not any(layer.causal for layer in layers(resolve(type="encoder", mask="reverse_causal")))


def test_r4_a_kinds_mask_is_laid_over_the_layers():
    kinds = {"a": {"mask": {"size": 2}}, "b": {"mask": ["prefix"]}, "c": {"mask": "none"}}
    found = layers(
        resolve({"mask": {"type": "window", "size": 4}}, layers=kinds, pattern=["a", "b", "c"], num_layers=3)
    )
    assert list(map(rules, found)) == [["causal", "window"], ["causal", "prefix"], ["causal"]]
    assert found[0].mask[1].size == 2


def test_r4_what_masks_need_is_passed_in_every_call():
    model, ids = build(type="encoder", mask=[{"type": "window", "size": 2}, "global_tokens"]), torch.arange(4)[None]
    with pytest.raises(Exception, match="this model requires global_attention_mask in every call"):
        model(ids)
    marks = torch.tensor([[0, 0, 0, 1]])
    base, far = (model(x, global_attention_mask=marks).hidden for x in (ids, torch.tensor([[7, 1, 2, 3]])))
    assert not torch.allclose(base[0, 3], far[0, 3])  # the marked token sees the first one
    with pytest.raises(Exception, match="no part of this model reads prefix_length"):
        build()(torch.arange(3)[None], prefix_length=torch.tensor([1]))


def test_r5_a_value_for_every_layer_or_for_each_of_a_kind():
    blueprint = resolve({"feedforward": MLP | {"d_ff": {"per_layer": [4, 8, 8, 16]}}})
    assert [layer.sublayers[1].config.d_ff for layer in layers(blueprint)] == [4, 8, 8, 16]
    assert len(blueprint.last.layers) == 3
    dropped = resolve({"dropout": {"per_layer": [0, 0.1, 0.2, 0.3]}})
    assert [layer.dropout for layer in layers(dropped)] == [0, 0.1, 0.2, 0.3]
    kinds = {"a": {"mask": {"type": "window", "size": {"per_layer": [2, 4]}}}, "b": {}}
    blueprint = resolve(layers=kinds, pattern=["b", "a"])
    assert [layer.mask[-1].size if len(layer.mask) > 1 else None for layer in layers(blueprint)] == [None, 2, None, 4]
    mixed = resolve({"mask": [{"type": "window", "size": {"per_layer": [1, 2, 3, 4]}}, "prefix"]})
    assert [layer.mask[1].size for layer in layers(mixed)] == [1, 2, 3, 4]


def test_r6_a_shared_layer_is_one_module_for_each_pattern_entry():
    plain = build(layers={"a": {}}, pattern=["a*4"]).stack("decoder")
    assert len({id(layer) for layer in plain.layers}) == 4  # the text is copied, weights are not
    one = build({"shared": True}).stack("decoder")
    assert len({id(layer) for layer in one.layers}) == 1
    groups = build({"shared": True}, layers=KINDS, pattern=["a*2", "b", "a"]).stack("decoder")
    first, second, third, fourth = groups.layers
    assert first is second and len({id(layer) for layer in (first, third, fourth)}) == 3
    turns = build(layers={"a": {"shared": True}, "b": {}}, pattern=["a", "b"]).stack("decoder").layers
    assert turns[0] is turns[2] and turns[1] is not turns[3]
    assert size(one) + 3 * size(first) == size(groups) + size(first) == size(plain)


@pytest.mark.parametrize(("name", "other"), [("attention", "feedforward"), ("feedforward", "attention")])
def test_r6_a_shared_sublayer_leaves_norms_and_the_rest_alone(name, other):
    stack = build({name: {"attention": HEADS, "feedforward": MLP}[name] | {"shared": True}}).stack("decoder")
    modules = {key: len({id(getattr(layer, key)) for layer in stack.layers}) for key in (name, other, f"{name}_norm")}
    assert modules == {name: 1, other: 4, f"{name}_norm": 4}
    assert size(stack) + 3 * size(getattr(stack.layers[0], name)) == size(build().stack("decoder"))


def test_r6_shared_layers_may_differ_by_their_mask():
    windows = {"type": "window", "size": {"per_layer": [1, 2, 3, 4]}}
    stack = build({"shared": True, "mask": windows}).stack("decoder")
    assert (len({id(layer) for layer in stack.layers}), len(stack.plan.layers)) == (1, 4)


@looped(
    "changes",
    [
        {"layers": {"a": {}, "b": {}}, "pattern": ["a", ["b", "a"]], "num_layers": 6},
        {"layers": {"a": {}, "b": {}, "c": KINDS["b"]}, "pattern": ["c", ["a", "b*2"], "c*2"], "num_layers": 9},
        {"layers": KINDS, "pattern": ["a", "b", "c"], "num_layers": 8},
        {"layers": {"a": {}, "b": {"shared": False}}, "pattern": ["b", ["a", "b"]], "num_layers": 8},
        {"layers": {"a": {}, "b": {}}, "pattern": ["a*2", "b*2", "a*2"], "num_layers": 6},
        {"layers": {"a": {"mask": {"type": "window", "size": {"per_layer": [1, 2, 3]}}}, "b": {}},
         "pattern": ["b", "a"], "num_layers": 6},
    ],
)  # fmt: skip
@looped("layer", [{"shared": True}, {"attention": HEADS | {"shared": True}}])
def test_r6_resolved_text_shares_the_same_weights(changes, layer):
    plan = resolve(layer, **changes).last
    again = read_again(load_recipe(recipe(layer, **changes))).blueprint().last
    assert len(set(plan.entries)) < len(plan.entries) and again.entries == plan.entries


def test_r6_one_token_table_for_both_sides():
    for embedding in (TABLE, "tokens"):
        model = build(**PAIR, embedding=embedding)
        encoder, decoder = (model.stack(side).embedding.tokens for side in ("encoder", "decoder"))
        assert (encoder is decoder) == (embedding is TABLE)
    narrow = build(**PAIR, embedding=TABLE | {"d_embedding": 4}, encoder={"d_model": 16})  # two widths, one table
    assert narrow.stack("encoder").embedding.tokens is narrow.stack("decoder").embedding.tokens


def test_r7_in_the_stack_it_is_one_part_in_a_layer_each_has_its_own():
    t5 = {"type": "t5_bias", "num_buckets": 8, "max_distance": 16}
    for changes, owners in (
        ({"position": t5}, ["decoder"]),
        ({"layer": {"position": t5}, "position": "none"}, [f"decoder.layers.{i}" for i in range(4)]),
    ):
        found = [name for name, _ in build(**changes).named_parameters() if "position" in name]
        assert found == [f"{owner}.position.0.table.weight" for owner in owners]


def test_r7_a_layers_position_is_laid_over_the_stacks():
    kinds = {"a": {"position": {"theta": 500}}, "b": {"position": "alibi"}, "c": {"position": "none"}, "d": {}}
    blueprint = resolve(position={"type": "rotary", "fraction": 0.5}, layers=kinds, pattern=["a", "b", "c", "d"])
    a, b, c, d = (layer.position for layer in layers(blueprint))
    assert (a[0].theta, a[0].fraction) == (500, 0.5)
    assert ([config.part.part_name for config in b], c, d) == (["alibi"], (), None)
    resolve({"position": "none"}, layers={"a": {"attention": {"num_heads": 8}}}, pattern=["a"])  # nothing to rotate
    both = resolve(position=["sinusoidal", "alibi"]).last.position
    assert [config.part.part_name for config in both] == ["sinusoidal", "alibi"]


def test_r7_none_in_a_layer_leaves_the_inputs_positions_alone():
    model, plain = (build(layer, position="learned") for layer in ({"position": "none"}, None))
    plain.load_state_dict(model.state_dict())
    ids = torch.arange(6)[None]
    assert torch.equal(model(ids).hidden, plain(ids).hidden)
    assert model.stack("decoder").position[0].table.weight.shape == (16, 8)


def test_r8_sides_are_laid_over_the_stack_keys():
    blueprint = resolve(
        **PAIR,
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


def test_r9_one_vocabulary_or_one_on_each_side():
    one = resolve(**PAIR)
    assert (one.encoder.vocab_size, one.decoder.vocab_size) == (20, 20)
    model = build(**PAIR, vocab_size=GONE, encoder={"vocab_size": 30}, decoder={"vocab_size": 40})
    assert [model.stack(side).embedding.tokens.num_embeddings for side in ("encoder", "decoder")] == [30, 40]
    assert model.head.output.weight.shape == (40, 8)


def test_r9_nothing_is_tied_by_default():
    for head in ("language_model", "masked_lm"):
        for tied in (True, False):
            more = {"more": {"type": head, "tied": True}}
            model = build(type="encoder", head={"type": head, "tied": tied}, heads=more)
            table = model.stack("encoder").embedding.tokens.weight
            assert (model.head.output.weight is table) == tied and model.heads["more"].output.weight is table
    assert not resolve().head.is_tied()


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
    late = build(type="encoder", embedding=embedding | {"norm_after_projection": True}, head="none")
    assert list(late.get_submodule("encoder.embedding.norm").weight.shape) == [8]


def test_r11_a_layer_has_what_it_describes_in_one_order():
    assert named(layers(resolve({"attention": GONE, **dict(reversed(small()["model"]["layer"].items()))}))[0]) == [
        "attention",
        "feedforward",
    ]
    pair = resolve(**PAIR)
    assert named(layers(pair.encoder)[0]) == ["attention", "feedforward"]
    assert named(layers(pair.decoder)[0]) == ["attention", "cross_attention", "feedforward"]
    assert named(layers(resolve({"attention": "none"}, position="none"))[0]) == ["feedforward"]
    assert named(layers(resolve({"feedforward": "none"}))[0]) == ["attention"]


def test_r11_another_order_and_names_repeated():
    order = ["feedforward", "attention", "feedforward"]
    macaron = layers(resolve({"sublayers": order, "feedforward_2": {"d_ff": 32}}))[0]
    assert named(macaron) == ["feedforward", "attention", "feedforward_2"]
    configs = [sublayer.config for sublayer in macaron.sublayers]
    assert (configs[0].d_ff, configs[2].d_ff, configs[2].part.part_name) == (16, 32, "mlp")
    stack = build({"sublayers": order}).stack("decoder")
    assert stack.layers[0].feedforward is not stack.layers[0].feedforward_2
    order = ["attention", "cross_attention", "attention", "feedforward"]  # an encoder leaves out cross_attention
    pair = resolve({"sublayers": order, "cross_attention_norm": "rms_norm"}, **PAIR)
    assert named(layers(pair.encoder)[0]) == ["attention", "attention_2", "feedforward"]
    assert named(layers(pair.decoder)[0]) == ["attention", "cross_attention", "attention_2", "feedforward"]


def test_r12_true_is_the_stacks_norm_wherever_one_stands():
    norms = {"embedding": {"type": "tokens", "norm": True}, "final_norm": True}
    blueprint = resolve({"attention": HEADS | {"qk_norm": True}}, type="encoder", head="masked_lm", **norms)
    stack, (first, *_) = blueprint.last, layers(blueprint)[0].sublayers
    found = (first.norm, first.config.qk_norm, stack.embedding.norm, stack.final_norm, blueprint.head.norm)
    assert {norm.eps for norm in found} == {1e-3}


def test_r12_a_mapping_is_laid_over_it_another_type_replaces_it_and_none_is_none():
    values = ({"bias": False}, "layer_norm", "rms_norm", {"type": "rms_norm"}, "none")
    norms = [resolve(embedding={"type": "tokens", "norm": value}).last.embedding.norm for value in values]
    assert (norms[0].eps, norms[0].bias, norms[1].eps) == (1e-3, False, 1e-3)  # the same type merges
    assert ([norm.eps for norm in norms[2:4]], norms[4]) == ([1e-6] * 2, None)
    assert resolve().last.embedding.norm is None  # left out: none
    assert resolve(type="encoder", head={"type": "masked_lm", "norm": "none"}).head.norm is None


def test_r12_final_norm():
    mixed = {"a": {"residual": "post_norm"}, "b": {}}
    for expected, layer, changes in (
        (1e-3, {}, {}),
        (None, {"residual": "post_norm"}, {}),
        (1e-3, {"residual": "post_norm"}, {"final_norm": True}),
        (1e-3, {}, {"final_norm": {"bias": False}}),
        (None, {}, {"final_norm": "none"}),
        (None, {}, {"layers": mixed, "pattern": ["b", "a"]}),  # the last layer's layout decides
        (1e-3, {}, {"layers": mixed, "pattern": ["a", "b"]}),
    ):
        assert getattr(resolve(layer, **changes).last.final_norm, "eps", None) == expected


def test_r13_one_sublayers_norm():
    layer = layers(resolve({"attention_norm": "none", "feedforward_norm": {"bias": False}}))[0]
    assert layer.sublayers[0].norm is None
    assert (layer.sublayers[1].norm.eps, layer.sublayers[1].norm.bias) == (1e-3, False)
    built = build({"attention_norm": "rms_norm"}).stack("decoder").layers[0]
    assert (type(built.attention_norm).__name__, type(built.feedforward_norm).__name__) == ("RMSNorm", "LayerNorm")
    order = {"sublayers": ["feedforward", "attention", "feedforward"]}
    for name, gone in (("feedforward_norm", [True, False, True]), ("feedforward_2_norm", [False, False, True])):
        assert [one.norm is None for one in layers(resolve(order | {name: "none"}))[0].sublayers] == gone


def test_r14_head_and_heads():
    heads = {"class": {"type": "classifier", "num_classes": 3, "reads": "encoder"}, "gone": "none", "vectors": "hidden"}
    model = build(**PAIR, heads=heads)
    out = model(torch.arange(5)[None], decoder_input_ids=torch.arange(4)[None])
    assert out.logits.shape == (1, 4, 20)
    assert {name: list(value.shape) for name, value in out.heads.items()} == {"class": [1, 3], "vectors": [1, 4, 8]}
    assert torch.equal(out.heads["vectors"], out.hidden)


@pytest.mark.parametrize("type", ["encoder", "decoder"])
def test_r15_memory_from_outside_has_its_own_width(type):
    model = build(type=type, embedding="none", head="none", memory={"d_model": 6}, vocab_size=GONE)
    cross = model.stack(type).layers[0].cross_attention
    assert (cross.key.weight.shape, cross.query.weight.shape) == ((8, 6), (8, 8))
    vectors, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    out = model(inputs_embeds=vectors, encoder_hidden_states=memory)
    assert (out.hidden.shape, out.logits) == ((2, 3, 8), None)
    assert not torch.allclose(out.hidden, model(inputs_embeds=vectors, encoder_hidden_states=memory + 1).hidden)
    real = torch.tensor([[1, 1, 0, 0, 0]] * 2)
    masked = model(inputs_embeds=vectors, encoder_hidden_states=memory, encoder_attention_mask=real)
    torch.testing.assert_close(masked.hidden, model(inputs_embeds=vectors, encoder_hidden_states=memory[:, :2]).hidden)


def test_r16_cross_attention_is_laid_over_attention_once_before_the_kinds():
    attention = {"type": "multi_head", "num_heads": 4, "head_dim": 4, "bias": False, "qk_norm": True}
    layer = layers(resolve({"attention": attention, "cross_attention": {"num_heads": 2}}, memory={"d_model": 6}))[0]
    config = layer.sublayers[1].config
    assert (config.num_heads, config.bias, config.qk_norm.eps) == (2, False, 1e-3) and layer.sublayers[1].memory
    same = layers(resolve({"attention": attention}, memory={"d_model": 6}))[0]
    assert same.sublayers[1].config == same.sublayers[0].config
    kinds = {"x": {"attention": "none"}, "s": {"cross_attention": "none"}, "f": {"attention": {"num_heads": 1}}}
    blueprint = resolve(memory={"d_model": 6}, layers=kinds, pattern=["x", "s", "f"], num_layers=3)
    cross, alone, few = layers(blueprint)
    assert (named(cross), named(alone)) == (["cross_attention", "feedforward"], ["attention", "feedforward"])
    assert [sublayer.config.num_heads for sublayer in few.sublayers[:2]] == [1, 2]


def test_r16_it_has_no_position_and_no_mask():
    plain = {"embedding": "none", "head": "none", "vocab_size": GONE, "memory": {"d_model": 8}}
    model = build({"cross_attention": HEADS}, position="alibi", **plain)
    vectors, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    out, turned = (model(inputs_embeds=vectors, encoder_hidden_states=one).hidden for one in (memory, memory.flip(1)))
    torch.testing.assert_close(out, turned)  # the memory is a set: every query sees all of it alike


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
        {"layer": {"attention": HEADS | {"dropout": 0.5}}},
        {"layer": {"feedforward": MLP | {"dropout": 0.5}}},
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


def test_r18_biases_all_none_or_named():
    names = ["query", "key", "value", "output"]
    for value, expected in ((True, names), (False, []), ([], []), (names[:3], names[:3])):
        attention = build({"attention": HEADS | {"bias": value}}).stack("decoder").layers[0].attention
        assert [name for name in names if getattr(attention, name).bias is not None] == expected


def over(overrides: dict[str, Any], layer: dict[str, Any] | None = None, **changes: Any) -> Blueprint:
    laid = {f"model.{key}": value for key, value in overrides.items()}
    return load_recipe(recipe(layer, **changes), overrides=laid).blueprint()


def test_r20_the_models_type_drops_nothing():
    assert over({"type": "encoder", "head": "masked_lm"}).encoder.num_layers == 4
    assert over({"type": "encoder_decoder"}).encoder.d_model == 8
    with pytest.raises(RecipeError, match="a model of type 'decoder' has one stack"):
        over({"type": "decoder"}, **PAIR, encoder={"num_layers": 2})


def test_r20_none_takes_out():
    assert over({"layer.attention.num_kv_heads": None}, {"attention": HEADS | {"num_kv_heads": 1}}) == over({})
    assert [name for name, _ in over({"heads.x": "none"}, heads={"x": "hidden", "y": "hidden"}).heads] == ["y"]
    optional = ("layers", "pattern", "heads", "head", "position", "mask", "memory", "max_length", "special_ids")
    over(dict.fromkeys(optional, "none"))
    for key in ("memory", "heads"):
        assert resolve(**{key: "none"}) == resolve()
    for layer in ({"sublayers": "none"}, {"cross_attention": "none"}):
        assert resolve(layer) == resolve()
    assert resolve(**PAIR, encoder="none") == resolve(**PAIR)


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
