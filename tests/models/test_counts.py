"""Sizes of models that papers tell, without their weights; and that building is repeatable and touches nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from tfkit.core.blueprint import Blueprint
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count_parameters

from .small import small


def parameters(blueprint: Blueprint) -> int:
    """Counted on the built model, each once; equal to the account made from the distinct layers alone."""
    built = sum(weight.numel() for weight in build_model(blueprint, "meta").parameters())
    assert count_parameters(blueprint) == built
    return built


def base(**overrides: Any) -> int:
    """transformer-base with some values changed, by their paths below `model`, `__` for a dot."""
    changes = {f"model.{path.replace('__', '.')}": value for path, value in overrides.items()}
    return parameters(load_recipe("transformer-base", overrides=changes).blueprint())


def test_original_base():
    attention, norm = 4 * 512**2, 2 * 512
    feedforward = 2 * 512 * 2048 + 2048 + 512
    layers = 6 * (attention + feedforward + 2 * norm) + 6 * (2 * attention + feedforward + 3 * norm)
    assert base() == layers + 37_000 * 512 == 63_045_632  # 63.0 million; the paper says 65


def test_original_big():
    size = parameters(load_recipe("transformer-big").blueprint())
    assert size == 214_171_648  # 214.2 million; the paper says 213


@pytest.mark.parametrize(
    ("changes", "published"),
    [
        ({"layer__attention__head_dim": 16, "layer__attention__value_dim": 64}, 58),  # (B) d_k 16
        ({"layer__attention__head_dim": 32, "layer__attention__value_dim": 64}, 60),  # (B) d_k 32
        ({"encoder__num_layers": 2, "decoder__num_layers": 2}, 36),  # (C)
        ({"encoder__num_layers": 4, "decoder__num_layers": 4}, 50),
        ({"encoder__num_layers": 8, "decoder__num_layers": 8}, 80),
        ({"layer__feedforward__d_ff": 1024}, 53),
        ({"layer__feedforward__d_ff": 4096}, 90),
    ],
)
def test_rows_of_table_3_differ_from_base_as_the_paper_says(changes, published):
    """Millions, which the paper rounds: each row and base by up to half of one."""
    assert (base(**changes) - base()) / 1e6 == pytest.approx(published - 65, abs=0.6)


@pytest.mark.parametrize("heads", [1, 4, 16, 32])
def test_heads_change_no_size(heads):
    assert base(layer__attention__num_heads=heads) == base()  # (A): heads of d_model / num_heads


def test_small_translator():
    """9,038,341: 3 + 3 layers, two vocabularies, learned positions, nothing tied (data/README.md, and by hand)."""
    sizes = {"type": "encoder_decoder", "d_model": 256, "max_length": 100, "num_layers": 3}
    sides = {"encoder": {"vocab_size": 7_853}, "decoder": {"vocab_size": 5_893}}
    attention, feedforward = {"type": "multi_head", "num_heads": 8}, {"type": "mlp", "d_ff": 512}
    layer = {"residual": "post_norm", "attention": attention, "feedforward": feedforward}
    recipe = small(layer, **sizes, **sides, head={"type": "language_model", "bias": True})
    del recipe["model"]["vocab_size"]
    attend, norm, up = 4 * (256**2 + 256), 2 * 256, 2 * 256 * 512 + 512 + 256
    tables = (7_853 + 5_893 + 2 * 100) * 256
    layers = 3 * (attend + up + 2 * norm) + 3 * (2 * attend + up + 3 * norm)
    by_hand = tables + layers + 5_893 * (256 + 1)
    assert parameters(load_recipe(recipe).blueprint()) == by_hand == 9_038_341


ATTENTION = {"type": "multi_head", "num_heads": 64, "num_kv_heads": 8, "bias": False}
LLAMA_2_70B = small(
    {"norm": "rms_norm", "attention": ATTENTION, "feedforward": {"type": "glu", "d_ff": 28_672, "bias": False}},
    d_model=8192,
    vocab_size=32_000,
    max_length=4096,
    num_layers=80,
    position="rotary",
)
BUILD = """
import json, resource, sys, time
from tfkit.models import build_model
from tfkit.recipe.load import load_recipe
begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
model = build_model(load_recipe(json.loads(sys.argv[1])).blueprint(), "meta")
count = sum(weight.numel() for weight in model.parameters())
seconds = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([count, seconds, 1024 * (peak - begun)]))
"""


@pytest.mark.full
def test_seventy_billion_parameters_take_no_memory():
    done = subprocess.run(
        [sys.executable, "-c", BUILD, json.dumps(LLAMA_2_70B)], capture_output=True, text=True, check=True
    )
    count, seconds, peak = json.loads(done.stdout)
    assert count == 68_976_648_192  # transformers 5.23.0, LlamaForCausalLM on meta
    assert seconds < 30
    assert peak < 5e8  # bytes beside the imported torch, whose builds differ; the weights would be 276e9


# ------------------------------------------------------------------------------------------------- repeatable builds


def built(**options: Any) -> Model:
    return build_model(load_recipe(small(head={"type": "language_model", "tied": True})).blueprint(), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_rounds_the_same_weights(dtype):
    exact, rounded = built().state_dict(), built(dtype=dtype).state_dict()
    assert {value.dtype for value in rounded.values()} == {dtype}
    assert all(torch.equal(exact[name].to(dtype), rounded[name]) for name in exact)


def test_devices():
    assert {weight.device.type for weight in built(device=torch.device("cpu")).parameters()} == {"cpu"}
    meta = built(device="meta", dtype=torch.bfloat16)
    assert {(weight.device.type, weight.dtype) for weight in meta.parameters()} == {("meta", torch.bfloat16)}
    assert meta.head.output.weight is meta.stack("decoder").embedding.tokens.weight
