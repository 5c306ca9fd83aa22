"""Variants of every family's models: what a config.json says of one, transformers loads and computes alike."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfkit.core.component import spell
from tfkit.core.errors import RecipeError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.settings import look, put
from tfkit.interop.huggingface.verifying import verify
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.views.resolved import model_values
from tfkit.run import Run
from tfkit.runs.folder import ENVIRONMENT

from .parity import Row, described, randomise
from .rows import ROWS

pytestmark = pytest.mark.full

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
ROTARY: dict[str, Any] = {"type": "rotary"}
# places of a model, and what else may stand there
CHANGES: dict[str, tuple[Any, ...]] = {
    "embedding.segments": (0, 1, 3),
    "embedding.norm": (None, {"type": "layer_norm"}),
    "embedding.scale": (None, "sqrt_d_model", 2.0),
    "layer.norm": ({"type": "layer_norm"}, {"type": "rms_norm"}, {"type": "layer_norm", "bias": False}),
    "layer.attention.bias": (True, False, ["query", "key", "value"], ["output"]),
    "layer.attention.num_kv_heads": (None, 1, 2),
    "layer.attention.head_dim": (None, 16),
    "layer.attention.qk_norm": (None, True),
    "layer.attention.softcap": (None, 5.0),
    "layer.attention.scale": (None, 0.3),
    "layer.attention.dropout": (0.1,),
    "layer.feedforward": ({"type": "mlp", "d_ff": 40}, {"type": "glu", "d_ff": 24, "bias": False}),
    "layer.feedforward.activation": ("gelu", "gelu_tanh", "relu", "silu"),
    "layer.residual": ("pre_norm", "post_norm", "sandwich", "parallel"),
    "layer.mask": (None, {"type": "window", "size": 5}),
    "position": (
        "learned", "sinusoidal", None, {"type": "learned", "offset": 2}, ROTARY, {**ROTARY, "fraction": 0.5},
        {**ROTARY, "layout": "interleaved"}, {**ROTARY, "scaling": {"type": "linear", "factor": 2.0}},
    ),
    "head.tied": (True, False),
    "head.bias": (True, False),
    "head.scale": (None, 0.5),
    "head.softcap": (None, 4.0),
    "max_length": (None, 33),
    "num_layers": (1, 2),
}  # fmt: skip
SPECIAL_IDS: tuple[dict[str, int], ...] = ({}, {"pad": 1, "start": 0, "end": 2}, {"pad": 0, "end": 1})
FIRST = {row.family: row for row in reversed(ROWS)}
QUICK = ("gemma2",)


def changed(model: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The model with another value at a place of all its stacks and layers that have it."""
    model = copy.deepcopy(model)
    for stack in [model[side] for side in ("encoder", "decoder") if side in model] or [model]:
        kinds = stack.get("layers", {}).values() if key.startswith("layer.") else ()
        for at, name in [(kind, key.removeprefix("layer.")) for kind in kinds] or [(stack, key)]:
            path = name.rpartition(".")[0]
            if not path or isinstance(look(at, path), dict):
                put(at, name, copy.deepcopy(value))
    return model


def variants(row: Row, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The model of a row with one thing or two changed, as far as that can be."""
    config = getattr(transformers, row.config)(**{"vocab_size": 61, **row.settings})
    config.architectures = [row.model]
    config.save_pretrained(folder)
    model = spell(model_values(described(folder)[1]))
    draw = random.Random(row.family)
    places = [(key, value) for key, values in CHANGES.items() for value in values]
    while count:
        other = model
        for key, value in draw.sample(places, draw.choice((1, 1, 2))):
            other = changed(other, key, value)
        try:
            blueprint_of(other)
        except RecipeError:
            continue
        count -= other != model
        if other != model:
            yield {**other, "special_ids": draw.choice(SPECIAL_IDS)}


@pytest.mark.filterwarnings("ignore:not written as:tfkit.core.errors.TfkitWarning")
@pytest.mark.parametrize(
    ("family", "count"),
    [
        (name, 3) if name in QUICK else pytest.param(name, 6, marks=pytest.mark.slow)
        for name in sorted(FIRST)
        if name != "youtu"  # transformers empties the pad token's row of this family when it loads it
    ],
)
def test_what_is_said_is_what_is_computed(family: str, count: int, tmp_path: Path) -> None:
    row = FIRST[family]
    for number, model in enumerate(variants(row, count, tmp_path)):
        blueprint = blueprint_of(model)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / ENVIRONMENT).write_text(json.dumps({"imported": {"family": family, "class": row.model}}))
        run = Run(folder, load_recipe({"tfkit": 1, "model": model}))
        run.model = build_model(blueprint, seed=0).eval()
        randomise(run.model, 0.2)
        if export_model(run, tmp_path / f"{number}.out").family_config is None:
            continue
        verdict = verify(run, str(tmp_path / f"{number}.out"), tolerance=1e-3)
        assert verdict.equal, (verdict.as_data(), model)
