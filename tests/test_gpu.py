"""The same recipes on a CUDA device: losses near those of the CPU, equal tokens, and how much of the device is used."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tests.training.small import small, trained
from tfkit.training.device import choose_device, describe_products

DEVICE = "cuda"
FLOPS, BANDWIDTH = 989e12, 3.35e12  # of an H100 SXM: dense bfloat16, and memory
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
ENCODER = {"model.type": "encoder", "model.head.type": "masked_lm", "objective": "masked_lm"}
ENCODER |= {"data.tokenizer": {"type": "word", "special_tokens": {"mask": "<mask>"}}}
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {},
    "grouped, gated, rotary": {
        "model.layer.attention": {"type": "multi_head", "num_heads": 2, "num_kv_heads": 1},
        "model.position": "rotary",
        "model.layer.feedforward": {"type": "glu", "d_ff": 8, "activation": "silu"},
    },
    "encoder": ENCODER,
    "recomputed": {"train.recompute": "all"},
    "muon": {"train.optimizer": "muon"},
}


def losses(folder: Path, changes: dict[str, Any], device: str) -> list[float]:
    out = folder / f"run{len(list(folder.iterdir()))}"
    trained(small(folder, {**changes, "train.device": device}, steps=6), out)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.mark.parametrize("kind", KINDS)
def test_training_has_the_losses_of_the_cpu(kind: str, tmp_path: Path) -> None:
    ours = losses(tmp_path, KINDS[kind], DEVICE)
    assert ours == pytest.approx(losses(tmp_path, KINDS[kind], "cpu"), rel=1e-3)


def test_greedy_tokens_are_those_of_the_cpu(tmp_path: Path) -> None:
    run = trained(small(tmp_path, {"train.device": DEVICE}, steps=20), tmp_path / "run")
    prompts = ["one two", "three"]
    here, there = (tfkit.load_run(run.folder, device=device) for device in (DEVICE, "cpu"))
    assert here.generate(prompts, max_new_tokens=8) == there.generate(prompts, max_new_tokens=8)


def test_bfloat16_stays_near_float32_and_is_announced(tmp_path: Path) -> None:
    changes = {"train.precision": "bfloat16"}
    assert losses(tmp_path, changes, DEVICE) == pytest.approx(losses(tmp_path, {}, "cpu"), rel=0.05)
    assert describe_products(choose_device(DEVICE), "bfloat16") == ", bfloat16, TF32 off"


def seconds(call: Callable[[], object], times: int = 10) -> float:
    """Return the median time of `call`, waiting for the device after each."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[times // 2]


def test_the_share_of_the_device_that_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    model = tfkit.build("gpt2", device=DEVICE)
    count = sum(weight.numel() for weight in model.parameters())
    ids = torch.randint(0, 50257, (8, 1024), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            model(ids).logits.float().logsumexp(-1).mean().backward()
        model.zero_grad()

    taken = seconds(step)
    with capsys.disabled():
        print(f"\nGPT-2, 8 x 1,024, bfloat16: {taken * 1e3:.1f} ms, {6 * count * ids.numel() / taken / FLOPS:.0%} MFU")
    taken = seconds(torch.inference_mode()(lambda: model(ids[:1, :1])))
    with capsys.disabled():
        print(f"one token, float32: {taken * 1e3:.2f} ms, {4 * count / taken / BANDWIDTH:.0%} of the memory bandwidth")
