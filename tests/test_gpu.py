"""What a GPU computes, compared with a CPU: `pytest -m gpu -n 0 -s` on a machine with CUDA; -s shows the rates.

gpu.sh runs these tests and some commands, and writes a table. With DEVICE=cpu a CPU takes the GPU's place, with tiny
sizes. What can be tested without a GPU is in test_device.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.generation.searching import best
from tests.training.small import small, trained
from tests.training.test_compiled import KINDS as PLAIN
from tests.training.test_compiled import steps_of
from tfkit.models import Model, build_model
from tfkit.models.static import Step, compiled_step, decode_step
from tfkit.recipe.load import load_recipe
from tfkit.run import Run
from tfkit.training.division import Sharded
from tfkit.training.objective.base import causal_loss
from tfkit.training.step import compiled

DEVICE = os.environ.get("DEVICE", "cuda")
CUDA = DEVICE != "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA and not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
ROWS, LENGTH, ROUNDS, NEW = (16, 1024, 10, (64, 192)) if CUDA else (2, 32, 1, (4, 12))
TINY = {"model.num_layers": 1, "model.d_model": 48, "model.layer.feedforward.d_ff": 96}
STILL = {"model.layer.dropout": 0.0, "model.layer.attention.dropout": 0.0}
NAME = "GPT-2 124M" if CUDA else "a tiny GPT-2"
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
    folder.mkdir(exist_ok=True)
    name = "-".join(map(str, train.values()))
    run = trained(small(folder, {**KINDS[kind], **STILL}, steps=5, **train), folder / name)
    return [line["loss"] for line in steps_of(folder / name)], run


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_texts_are_those_of_a_cpu(tmp_path: Path, kind: str) -> None:
    on_cpu, cpu = losses(tmp_path / "other", kind, device="cpu")
    on_gpu, gpu = losses(tmp_path, kind, device=DEVICE)
    assert on_gpu == pytest.approx(on_cpu, rel=1e-4)
    if kind != "encoder":
        gpu.model.load_state_dict(cpu.model.state_dict())
        assert next(gpu.model.parameters()).is_cuda == CUDA
        prompts = ["one two", "three"]
        texts = cpu.generate(prompts, max_new_tokens=8)
        assert gpu.generate(prompts, max_new_tokens=8) == texts
        for compiled in (False, True):
            steady = gpu.recipe.generate.model_copy(update={"cache": "static", "compile": compiled})
            gpu.recipe = replace(gpu.recipe, generate=steady)
            assert gpu.generate(prompts, max_new_tokens=8) == texts


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_near_float32(tmp_path: Path, kind: str) -> None:
    exact, _ = losses(tmp_path, kind, device=DEVICE)
    rough, _ = losses(tmp_path, kind, device=DEVICE, precision="bfloat16")
    assert rough == pytest.approx(exact, rel=0.03) and rough != exact


def test_shards_on_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = small(tmp_path, {**STILL, "model.num_layers": 2}, steps=5, device=DEVICE)
    plain = trained(loaded, tmp_path / "plain")
    divided = []

    def sharded(task: Any, compute: Any, team: Any) -> Sharded:
        divided.append(Sharded(task.trained, compute, team, task.train.device.type))
        return divided[0]

    monkeypatch.setattr("tfkit.training.loop.divided", sharded)  # one process has nothing to divide by itself
    dist.init_process_group("cpu:gloo,cuda:nccl" if CUDA else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        again = trained(loaded, tmp_path / "sharded")
    finally:
        dist.destroy_process_group()
    assert all(hasattr(weight, "to_local") for weight in divided[0].step.parameters())
    one, two = ([line["loss"] for line in steps_of(run.folder)] for run in (plain, again))
    assert two == pytest.approx(one, rel=1e-5)
    print(f"\nlosses of 5 steps differ by {max(abs(a - b) for a, b in zip(one, two, strict=True)):.0e}")


def wait() -> None:
    """Wait for the device."""
    if CUDA:
        torch.cuda.synchronize()


def seconds(run: Callable[[], object], count: int) -> float:
    """Time of one call on the device, after three others."""
    for _ in range(3):
        run()
    wait()
    began = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - began) / count


def gpt2(dtype: torch.dtype) -> Model:
    overrides = {**STILL, "model.embedding.dropout": 0.0, **({} if CUDA else TINY)}
    return build_model(load_recipe("gpt2", overrides).blueprint(), device=DEVICE, dtype=dtype, seed=0)


def share(value: float, index: int) -> str:
    """A rate as a share of the device's peak."""
    name = torch.cuda.get_device_name() if CUDA else "CPU"
    peaks = next((peaks for known, peaks in PEAKS.items() if known in name), None)
    return f"of an unknown peak ({name})" if peaks is None else f"{value / peaks[index]:.1%} of the peak of {name}"


@pytest.mark.parametrize("on", [False, True], ids=["eager", "compiled"])
def test_the_rate_of_a_training_step_is_printed(on: bool) -> None:
    model = gpt2(torch.float32).train()
    called: Any = compiled(SimpleNamespace(settings=SimpleNamespace(compile=on), model=model))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 50257, (ROWS, LENGTH), device=DEVICE)
    batch, sums = {"input_ids": ids, "labels": ids.flatten()}, []

    def step() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = causal_loss(called, batch, training=True)
        sums.append(loss.total.detach())
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()

    took, weights = seconds(step, ROUNDS), sum(weight.numel() for weight in model.parameters())
    assert 0 < float(sums[-1]) < float(sums[0])
    stack = model.blueprint.last
    # causal scores and outputs: half of 12 L d T
    operations = ids.numel() * (6 * weights + 6 * stack.num_layers * stack.d_model * LENGTH)
    rates = f"{ids.numel() / took:,.0f} tokens/s, {operations / took / 1e12:.0f} TFLOP/s"
    print(f"\n{NAME}, {ROWS} x {LENGTH:,} tokens, bfloat16: {rates}, {share(operations / took, 0)} (MFU)")


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("step", [None, decode_step, compiled_step], ids=["growing", "static", "compiled"])
def test_the_rate_of_decoding_is_printed(step: Step | None, rows: int) -> None:
    model = gpt2(torch.bfloat16).eval()
    size = sum(weight.nbytes for weight in model.parameters())
    prompts = [[1, 2, 3]] * rows
    with torch.inference_mode():
        short, long = (seconds(lambda most=most: best(model, prompts, most, step=step), 3) for most in NEW)  # type: ignore[misc]
    took = (long - short) / (NEW[1] - NEW[0])
    rates = f"{rows / took:,.0f} tokens/s, weights {share(size / took, 1)}"
    print(f"\n{NAME}, {rows} at once, bfloat16: {rates} (bandwidth)")
