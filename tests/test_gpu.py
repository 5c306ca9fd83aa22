"""What a GPU computes, compared with a CPU: `pytest -m gpu -n 0 -s` on a machine with CUDA; -s shows the rates.

What can be tested without a GPU is in test_device.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.generation.searching import best
from tests.training.small import small, trained
from tests.training.test_compiled import KINDS as PLAIN
from tests.training.test_compiled import steps_of
from tfkit.models import Model, build_model
from tfkit.models.static import Step, compiled_step, decode_step
from tfkit.recipe.load import load_recipe
from tfkit.run import Run
from tfkit.training.objective.base import causal_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
KINDS: dict[str, dict[str, Any]] = {
    **PLAIN,
    "grouped, gated, rotary": {
        "model.layer.attention": {"type": "multi_head", "num_heads": 2, "num_kv_heads": 1},
        "model.position": "rotary",
        "model.layer.feedforward": {"type": "glu", "d_ff": 8, "activation": "silu"},
    },
    "recomputed": {"train.recompute": "all"},
    "muon": {"train.optimizer": "muon"},
}
# dense bfloat16 products and bytes of memory per second, from the data sheets; others get no share
PEAKS = {"A100": (312e12, 2.0e12), "H100": (989e12, 3.35e12), "H200": (989e12, 4.8e12), "L4": (121e12, 0.3e12)}


def losses(folder: Path, kind: str, **train: Any) -> tuple[list[float], Run]:
    """Train a tiny model, without dropout; return the loss of each step and the run."""
    still = {"model.layer.dropout": 0.0, "model.layer.attention.dropout": 0.0}
    name = "-".join(map(str, train.values()))
    run = trained(small(folder, {**KINDS[kind], **still}, steps=5, **train), folder / name)
    return [line["loss"] for line in steps_of(folder / name)], run


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_texts_are_those_of_a_cpu(tmp_path: Path, kind: str) -> None:
    on_cpu, cpu = losses(tmp_path, kind, device="cpu")
    on_gpu, gpu = losses(tmp_path, kind, device="cuda")
    assert on_gpu == pytest.approx(on_cpu, rel=1e-4)
    if kind != "encoder":
        gpu.model.load_state_dict(cpu.model.state_dict())
        assert next(gpu.model.parameters()).is_cuda
        prompts = ["one two", "three"]
        texts = cpu.generate(prompts, max_new_tokens=8)
        assert gpu.generate(prompts, max_new_tokens=8) == texts
        for compiled in (False, True):
            steady = gpu.recipe.generate.model_copy(update={"cache": "static", "compile": compiled})
            gpu.recipe = replace(gpu.recipe, generate=steady)
            assert gpu.generate(prompts, max_new_tokens=8) == texts


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_near_float32(tmp_path: Path, kind: str) -> None:
    exact, _ = losses(tmp_path, kind, device="cuda")
    rough, _ = losses(tmp_path, kind, device="cuda", precision="bfloat16")
    assert rough == pytest.approx(exact, rel=0.03) and rough != exact


def seconds(run: Callable[[], object], count: int) -> float:
    """Time of one call on the device, after three others."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def gpt2(dtype: torch.dtype) -> Model:
    overrides = {"model.embedding.dropout": 0.0, "model.layer.dropout": 0.0, "model.layer.attention.dropout": 0.0}
    return build_model(load_recipe("gpt2", overrides).blueprint(), device="cuda", dtype=dtype, seed=0)


def share(value: float, index: int) -> str:
    """A rate as a share of the device's peak."""
    name = torch.cuda.get_device_name()
    peaks = next((peaks for known, peaks in PEAKS.items() if known in name), None)
    return f"of an unknown peak ({name})" if peaks is None else f"{value / peaks[index]:.1%} of the peak of {name}"


def test_the_rate_of_a_training_step_is_printed() -> None:
    model = gpt2(torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 50257, (16, 1024), device="cuda")
    batch = {"input_ids": ids, "labels": ids.flatten()}

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = causal_loss(model, batch, training=True)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()

    took, weights = seconds(step, 10), sum(weight.numel() for weight in model.parameters())
    operations = ids.numel() * (6 * weights + 6 * 12 * 768 * 1024)  # causal scores and outputs: half of 12 L d T
    rates = f"{ids.numel() / took:,.0f} tokens/s, {operations / took / 1e12:.0f} TFLOP/s"
    print(f"\nGPT-2 124M, 16 x 1,024 tokens, bfloat16: {rates}, {share(operations / took, 0)} (MFU)")


@pytest.mark.parametrize("step", [None, decode_step, compiled_step], ids=["growing", "static", "compiled"])
def test_the_rate_of_decoding_is_printed(step: Step | None) -> None:
    model = gpt2(torch.bfloat16).eval()
    size = sum(weight.nbytes for weight in model.parameters())
    with torch.inference_mode():
        long, short = (seconds(lambda most=most: best(model, [[1, 2, 3]], most, step=step), 3) for most in (192, 64))  # type: ignore[misc]
    took = (long - short) / 128
    print(f"\nGPT-2 124M, 1 row, bfloat16: {1 / took:,.0f} tokens/s, weights {share(size / took, 1)} (bandwidth)")
