"""Bit-for-bit independence of a text from the other prompts of its batch, with `generate.invariant`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.generation.searching import small
from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.generation import decoder
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.search import prepare
from tfkit.generation.texts import check_invariant, find
from tfkit.models import Model, build_model
from tfkit.models.static import compiled_step
from tfkit.recipe.load import load_recipe

HEADS, GROUPED = {"attention.num_heads": 4}, {"attention.num_heads": 4, "attention.num_kv_heads": 2}
EXPERTS = {"feedforward.num_experts": 4, "feedforward.num_active": 2, "feedforward.expert.d_ff": 36}
SHARED = {"feedforward.shared_expert.d_ff": 36, "attention.head_dim": 16}
MIXER = {f"mixer.{name}": size for name, size in (("num_heads", 2), ("head_dim", 16), ("num_value_heads", 4))}
PAIR = {"model.encoder.num_layers": 2, "model.decoder.num_layers": 2}
# options of a layer, and others; widths that are no multiple of a vector register, too
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt2": ({**HEADS, "feedforward.d_ff": 100}, {"model.max_length": 64}),
    "llama-2-7b": ({**HEADS, "feedforward.d_ff": 100}, {}),
    "gemma-2-2b": ({**GROUPED, "attention.head_dim": 16, "feedforward.d_ff": 100}, {"model.layers.local.mask.size": 8}),
    "mixtral-8x7b": ({**GROUPED, **EXPERTS}, {}),
    "qwen3-8b": ({**GROUPED, "feedforward.d_ff": 100}, {}),
    "t5-v1.1-base": ({**HEADS, "feedforward.d_ff": 100}, PAIR),
    "transformer-base": ({**HEADS, "feedforward.d_ff": 100}, PAIR),
    "qwen3-next-80b-a3b": (
        {**GROUPED, **EXPERTS, **SHARED},
        {"model.num_layers": 4, **{f"model.layers.linear.{name}": size for name, size in MIXER.items()}},
    ),
}
LENGTHS = (5, 9, 17, 3, 12, 30, 7, 21, 4, 11, 14, 8, 6, 19, 10, 25)


def shrunk(name: str) -> Model:
    layer, more = SHAPES[name]
    sizes = {} if "model.encoder.num_layers" in more else {"model.num_layers": 2}
    common = {"model.d_model": 64, "model.vocab_size": 211, "model.init": {"type": "normal", "std": 0.15}, **sizes}
    overrides = {**common, **{f"model.layer.{option}": size for option, size in layer.items()}, **more}
    return build_model(load_recipe(name, overrides=overrides).blueprint(), seed=5).eval()


def written(
    model: Model, rows: list[list[int]], strategy: object, batch_size: int, invariant: bool, new: int = 8
) -> list[tuple[tuple[int, ...], float]]:
    pair = model.blueprint.encoder is not None
    prompts, sources = ([[1]] * len(rows), rows) if pair else (rows, None)
    search = prepare(model, prompts, new, sources=sources, scored=True, invariant=invariant)
    found = find(Slot("strategy").validate(strategy).build(), search, batch_size)
    return [(texts[0].ids, texts[0].log_probability) for texts in found]


@pytest.mark.full
@pytest.mark.parametrize("name", SHAPES)
def test_a_text_does_not_depend_on_its_neighbours(name: str) -> None:
    """Without the option, tokens are equal and log-probabilities are not."""
    model, draw = shrunk(name), random.Random(0)
    rows = [[draw.randrange(3, 211) for _ in range(length)] for length in LENGTHS]
    for strategy in ("greedy", {"type": "beam", "num_beams": 3}):
        alone = [written(model, [row], strategy, 1, invariant=True)[0] for row in rows]
        for count in (3, 16):
            assert written(model, rows[:count], strategy, count, invariant=True) == alone[:count]
            usual = written(model, rows[:count], strategy, count, invariant=False)
            assert [ids for ids, _ in usual] == [ids for ids, _ in alone[:count]]
        assert usual != alone


def test_copies_that_may_not_all_fit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = small(), [[3, 4], [5, 6, 7]]
    used = StepDecoder(model)
    search = prepare(model, rows, 3, invariant=True, decoder=used)
    monkeypatch.setattr(decoder, "MOST_BYTES", 1)
    find(Slot("strategy").validate("greedy").build(), search)
    assert used._copies is None
    monkeypatch.undo()
    find(Slot("strategy").validate("greedy").build(), search)
    assert used._copies is not None


def test_what_is_not_invariant_is_refused() -> None:
    weight = torch.ones(2)
    check_invariant(weight, None, None)
    for args, message in (
        ((weight.to("meta"), None, None), "runs only on a CPU, but this model is on meta; use the device cpu"),
        ((weight, "int8", None), "needs float32 weights, but quantize is int8; use one of the two"),
        (
            (weight.bfloat16(), None, None),
            "needs float32 weights, but those of this model are bfloat16; convert it with model.float()",
        ),
        (
            (weight, None, compiled_step),
            "cannot use a compiled step, which depends on earlier shapes; set generate.compile: false",
        ),
    ):
        with pytest.raises(UsageError) as error:
            check_invariant(*args)  # type: ignore[arg-type]
        assert str(error.value) == f"generate.invariant: {message}"
