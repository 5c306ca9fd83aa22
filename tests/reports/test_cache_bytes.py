"""What a decode cache is said to hold is what it holds, for every kind of state."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tfkit.generation.stepper import Stepper, evaluating
from tfkit.models import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count

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
    "short_convolution": {"mixer": "short_convolution"},
    "shared": {"attention": HEADS, "shared": True},
}


def recipe(layer: dict[str, Any], kind: str, **more: Any) -> Any:
    """A small model of such layers."""
    sides = {"encoder": {"num_layers": 1}, "decoder": {"num_layers": 3}} if kind != "decoder" else {"num_layers": 3}
    model = {
        "type": kind,
        "d_model": 16,
        "vocab_size": 23,
        "embedding": "tokens",
        "layer": {"norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 24}, **layer},
        "head": "language_model",
        **sides,
        **more,
    }
    return load_recipe({"tfkit": 1, "model": model}).blueprint()


def held(plan: Any, rows: int, prompt: int, length: int) -> int:
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "decoder") for name in LAYERS if name != "lstm_that_reads"]
    + [(name, "encoder_decoder") for name in ("grouped", "window", "latent", "linear", "lstm_that_reads")],
)
def test_a_cache_is_as_large_as_foretold(name: str, kind: str) -> None:
    plan = recipe(LAYERS[name], kind)
    assert count(plan, 12, 2).total.cache_bytes == held(plan, 2, 9, 12) > 0


def test_a_window_that_is_not_full_yet_is_counted_as_it_is() -> None:
    plan = recipe(LAYERS["window"], "decoder")
    assert count(plan, 4).total.cache_bytes == held(plan, 1, 1, 4) == 3 * 4 * 2 * 16 * 4


def test_layers_that_differ_hold_what_each_needs() -> None:
    layers = {"near": WINDOW, "far": {}}
    plan = recipe(LAYERS["heads"], "decoder", layers=layers, pattern=["near", "near", "far"])
    token = 2 * 16 * 4
    assert count(plan, 40).total.cache_bytes == held(plan, 1, 3, 40) == token * (5 + 5 + 40)


def test_a_window_bounds_the_cache_of_any_length() -> None:
    plan = recipe(LAYERS["window"], "decoder")
    assert count(plan, 100).total.cache_bytes == count(plan, 1000).total.cache_bytes
