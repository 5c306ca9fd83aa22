"""The rule table: parts that cannot be combined are refused by name, and what would can be combined is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.components.attention import Attention
from tfkit.components.feedforward import MLP
from tfkit.components.mixer import Mixer
from tfkit.components.norm import LayerNorm
from tfkit.components.position import Position
from tfkit.core.context import Context
from tfkit.core.errors import UsageError
from tfkit.core.inputs import ASSUMED, CAPABILITIES, TOKENWISE
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.recipe.rules import PAIRS, RULES, pairs

from .small import faults as small_faults
from .small import small


def recipe(layer: dict[str, Any], rest: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    return small(layer, **({"max_length": 16, "position": "sinusoidal"} | model)) | (rest or {})


def faults(layer: dict[str, Any], rest: dict[str, Any] | None = None, **model: Any) -> list[str]:
    return small_faults(recipe(layer, rest, **model))


class Plain(Attention):
    """Says nothing of what it can do."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x


class Forwards(Mixer):
    """Only ever looks back."""

    capabilities = frozenset({"causal", "cache"})

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x.cumsum(dim=1)


@pytest.fixture(autouse=True)
def own_parts() -> None:
    tfkit.register("attention", "plain")(Plain)
    tfkit.register("mixer", "forwards")(Forwards)


WITHOUT = {"attention": "none", "mixer": "forwards"}


def test_every_capability_of_a_part_is_one_there_is():
    parts = [part for slot in CATALOGUES for part in REGISTRY.load(slot).values()]
    assert not [part for part in parts if not part.capabilities <= set(CAPABILITIES)]
    assert ASSUMED | TOKENWISE | {rule.capability for rule in RULES} <= set(CAPABILITIES)


def test_a_position_asks_the_attentions_that_it_serves():
    for position in ("rotary", "alibi", "t5_bias"):
        fault = faults({"attention": {"type": "plain"}}, position=position)[0]
        assert fault.startswith("model.layer.attention: attention 'plain' does not declare")
        assert f"which position '{position}' requires" in fault
        going = fault.partition(f"attentions compatible with '{position}': ")[2].partition(";")[0].split(", ")
        assert "multi_head" in going and "plain" not in going
        served = fault.partition("positions compatible with 'plain': ")[2].partition(" (see")[0].split(", ")
        assert {"learned", "sinusoidal", "none"} <= set(served) and position not in served
    for position in ("sinusoidal", "learned", "none"):
        tfkit.load_recipe(recipe({"attention": {"type": "plain"}}, position=position))


def test_a_layers_own_position_asks_that_layer_only():
    kinds = {"turned": {"position": "rotary"}, "plain": {"attention": {"type": "plain"}}}
    tfkit.load_recipe(recipe({}, layers=kinds, pattern=["turned", "plain"]))
    kinds["plain"]["position"] = "rotary"
    (fault,) = faults({}, layers=kinds, pattern=["turned", "plain"])
    assert fault.startswith("model.layers.plain.attention: attention 'plain' does not declare 'rotation'")


def test_a_position_that_nothing_takes_is_refused():
    assert faults(WITHOUT, position="alibi") == ["model.position: no layer that uses this position has self-attention"]
    assert faults({**WITHOUT, "position": "rotary"}, position="learned") == [
        "model.layer.position: the layer has no self-attention to use this position; set position: none"
    ]
    tfkit.load_recipe(recipe(WITHOUT, position="learned"))
    # served or not is asked of those layers that take the stack's position
    tfkit.load_recipe(recipe({}, position="alibi", layers={"a": {}, "b": WITHOUT}, pattern=["a", "b"]))


def test_a_mask_and_a_direction_ask_a_sublayer():
    tfkit.load_recipe(recipe(WITHOUT))
    (fault,) = faults(WITHOUT, mask={"type": "window", "size": 4})
    assert fault.startswith("model.layer.mixer: mixer 'forwards' does not declare 'masks'")
    (fault,) = faults(WITHOUT, type="encoder")
    assert fault == (
        "model.layer.mixer: mixer 'forwards' does not declare 'bidirectional' (works in bidirectional layers), "
        "which a bidirectional layer requires; mixers that do: fourier, gru, lstm, rnn"
    )


def test_a_norm_that_mixes_tokens_is_refused_where_it_would_show_the_future():
    class OverTime(LayerNorm):
        capabilities = frozenset({"bidirectional"})

    tfkit.register("norm", "over_time")(OverTime)
    assert any("norm 'over_time' does not declare 'causal'" in fault for fault in faults({"norm": "over_time"}))
    tfkit.load_recipe(recipe({"norm": "over_time"}, type="encoder"))


def test_a_memory_asks_the_cross_attention_only():
    side = {"type": "encoder_decoder", "encoder": {}, "decoder": {}}
    (fault,) = faults({"attention": {"type": "plain"}}, **side)
    assert fault.startswith("model.layer.attention: attention 'plain' does not declare 'cross_attention'")
    cross = {"attention": {"type": "plain"}, "cross_attention": {"type": "multi_head", "num_heads": 2}}
    tfkit.load_recipe(recipe(cross, **side))


def test_batches_ask_the_parts():
    data = {"tokenizer": "character", "train": {"type": "phrases", "split": "train", "count": 20}}
    packed = {"data": data | {"batch": {"size": 4, "pack": True, "length": 8}}}
    found = faults(WITHOUT, packed | {"objective": {"type": "causal_lm", "join": False}})
    assert any(fault.startswith("data.batch.pack: mixer 'forwards' does not declare 'packing'") for fault in found)


def test_an_objective_hands_over_what_masks_need():
    (fault,) = faults({}, {"objective": "causal_lm"}, mask="prefix")
    assert fault == "objective: 'causal_lm' does not provide prefix_length, which mask 'prefix' requires in every call"


def test_a_call_with_padding_is_refused_where_a_part_would_look_at_it():
    model = tfkit.build(recipe(WITHOUT))
    ids = torch.ones(2, 4, dtype=torch.long)
    model(ids)
    with pytest.raises(UsageError, match=r"mixer 'forwards' cannot mask padding; pass texts of equal length"):
        model(ids, attention_mask=ids)
    with pytest.raises(UsageError, match=r"mixer 'forwards' cannot separate packed texts"):
        model(ids, segment_ids=ids)


def test_the_table_of_pairs_is_complete():
    for slot, other in PAIRS:
        found = list(pairs(slot, other))
        assert len(found) == len(REGISTRY.names(slot)) * len(REGISTRY.names(other))


def test_a_part_of_ones_own_is_in_the_table():
    class Pulls(Position):
        def temperature(self, positions: Tensor) -> Tensor:
            return positions * 0.1 + 1

    tfkit.register("position", "pulls")(Pulls)
    table = {(name, other): why for name, other, why in pairs("position", "attention")}
    assert table["pulls", "multi_head"] is None and table["sinusoidal", "plain"] is None
    assert "does not declare 'temperature'" in (table["pulls", "plain"] or "")


def test_a_feedforward_may_refuse_a_direction():
    class Backwards(MLP):
        capabilities = frozenset({"bidirectional", "padding", "masks"})

    tfkit.register("feedforward", "backwards")(Backwards)
    (fault,) = faults({"feedforward": {"type": "backwards", "d_ff": 4}})
    assert fault.startswith("model.layer.feedforward: feedforward 'backwards' does not declare 'causal'")
