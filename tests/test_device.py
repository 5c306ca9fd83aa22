"""Every shipped model on a pretend GPU: no operation mixes devices, and the host waits once a step or token.

What a real GPU computes is in test_gpu.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.interop.leaving import NAMES, tiny
from tests.pretend import Device, pretending
from tests.training.small import LINES
from tfkit.functional import loss
from tfkit.generation.search import prepare as searching
from tfkit.generation.strategy.rows import Greedy
from tfkit.models import Model, build_model
from tfkit.models.build import meta_inputs
from tfkit.models.static import Step, decode_step, static_fault
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.runs.folder import RunFolder
from tfkit.runs.history import describe_products
from tfkit.training.feed import Ahead, Feed, Made
from tfkit.training.loop import Trainer
from tfkit.training.progress import ProgressMeter, Reporter
from tfkit.training.setup import prepare

pytestmark = pytest.mark.full

QUICK = ("gpt2", "bert-base", "transformer-base", "mixtral-8x7b")
STEPS, TOKENS = 3, 12
# files that wait more than once a step or token
WAITING = {
    "components/feedforward/experts.py": "shapes depend on how many tokens an expert gets: once a layer",
    "models/stack.py": "rotations that depend on the length of a text are compared with those of the cache",
}
# models that no objective trains on plain text: their forward and backward passes alone are tried
UNTRAINED = {
    "clip-text-base": "its head pools",
    "electra-small": "it needs a generator",
    "esm2-8m": "the id of its mask token is its own tokenizer's",
    "ettin-decoder-150m": "it is causal, and its head predicts masked tokens",
    "fnet-base": "it has no mask of padding",
    "gte-multilingual-base": "it has no head",
    "latent-diffusion-block": "it reads vectors",
    "longformer-base": "it needs global tokens",
    "lstm-encoder": "it classifies",
    "nomic-embed-text": "it has no head",
    "siglip-text-base": "its head pools",
}


class Now(Ahead):
    """Batches made when they are asked for, in the thread that sees the device."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self.made: Iterator[Made] = feed.made(feed.order())

    def __next__(self) -> Made:
        return next(self.made)


def task_of(name: str, folder: Path) -> Recipe:
    """A tiny version of a model that trains on a few lines of text."""
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    plain = tiny(name)
    model, blueprint = plain.root.plain()["model"], plain.blueprint()
    model.pop("special_ids", None)
    assert blueprint.head is not None
    masked = blueprint.head.part.part_name == "masked_lm" or blueprint.decoder is None
    goal = "denoising" if blueprint.encoder and blueprint.decoder else "masked_lm" if masked else "causal_lm"
    words = {"type": "word", "special_tokens": {role: f"<{role}>" for role in ("mask", "start", "end", "pad")}}
    text = {"type": "text", "files": str(folder / "lines.txt")}
    return load_recipe(
        {
            "tfkit": 1,
            "model": model,
            "data": {"tokenizer": words, "batch": {"size": 2}, "train": text},
            "objective": {"type": goal, **({"join": False} if goal == "causal_lm" else {})},
            "train": {"steps": 9, "device": "cuda", "clip_norm": 1.0, "schedule": {"type": "constant", "lr": 0.01}},
        }
    )


def train(recipe: Recipe, folder: Path, device: Device) -> Model:
    """Take a few steps, the events of the first forgotten: it makes the state of the optimizer."""
    run, silent = RunFolder(folder / "run"), Reporter(False)
    run.path.mkdir()
    trainer = Trainer(prepare(recipe, silent), run, silent)
    trainer.model.train()
    trainer.division = trainer._divided()
    batches = Now(trainer.task.train)
    for step in range(1 + STEPS):
        if step == 1:
            check_device(device)
        trainer._step(batches, ProgressMeter(silent, 0, 9))
    return trainer.model


def differentiate(name: str) -> Model:
    """Run a forward and a backward pass."""
    model = build_model(tiny(name).blueprint(), seed=0).to("cuda").train()
    inputs = {key: torch.ones(one.shape, dtype=one.dtype).to("cuda") for key, one in meta_inputs(model, 6, 2).items()}
    out = model(**inputs)
    sums: list[Tensor] = [one.double().sum() for one in (out.hidden, *out.heads.values())]
    torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]
    return model


def check_device(device: Device) -> None:
    """Forget the events, of which none may mix devices."""
    assert not device.mixed
    device.reset()


def check_waits(waits: Counter[str], count: int, layers: int) -> None:
    """Hold the waits of some steps or tokens to one each, and one a layer for the reasons above."""
    files = Counter(line.partition(":")[0] for line in waits.elements())
    assert all(files.pop(file, 0) <= max(2, layers) * count for file in WAITING)
    assert files.total() <= count, waits


def generate(model: Model, device: Device, step: Step | None) -> tuple[Counter[str], Counter[str]]:
    """Write greedily, padded; return the waits and copies of some more tokens."""
    prompts, pair = [[5, 6, 7], [8, 9]], model.blueprint.encoder is not None
    waits, uploads = [], []
    for most in (TOKENS, 2 * TOKENS):
        given = {"sources": prompts} if pair else {}
        search = searching(model, [[2], [2]] if pair else prompts, most, step=step, **given)
        check_device(device)
        with torch.inference_mode():
            written = Greedy(Greedy.Config()).search(search)
        assert all(len(row[0].ids) == most for row in written)
        waits.append(device.waits)
        uploads.append(device.uploads)
    return waits[1] - waits[0], uploads[1] - uploads[0]


def marked(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", marked(NAMES))
def test_a_model_stays_on_its_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch) as device:
        if name in UNTRAINED:
            model = differentiate(name)
        else:
            model = train(task_of(name, tmp_path), tmp_path, device)
            check_waits(device.waits, STEPS, model.blueprint.last.num_layers)
            assert not device.uploads
        if model.blueprint.decoder is not None and name not in UNTRAINED:
            fault = static_fault(model.stack(model.blueprint.last.side))
            for step in (None, decode_step) if fault is None else (None,):
                waits, uploads = generate(model.eval(), device, step)
                check_waits(waits, TOKENS, model.blueprint.last.num_layers)
                assert not uploads
        check_device(device)


def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretending(monkeypatch) as device:
        x = torch.arange(3.0).to("cuda")
        assert x.is_cuda and (x + 1).device.type == "cuda" and not x.cpu().is_cuda
        device.reset()
        _ = x + torch.ones(3)
        assert device.mixed.total() == 1
        for wait in (x.sum().item, x.tolist, x.nonzero, x.cpu, lambda: x[x > 1], lambda: bool(x[0])):
            before = device.waits.total()
            wait()
            assert device.waits.total() == before + 1
        torch.tensor([1.0], device="cuda")
        assert device.uploads.total() == 1 and device.mixed.total() == 1


def test_the_loss_on_a_gpu_has_large_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", 1)
    features, weight, targets = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4), torch.arange(6) % 5
    small = loss.linear_cross_entropy(features, weight, None, targets)
    products: list[Tensor] = []
    product = loss.product
    monkeypatch.setattr(loss, "product", lambda *given: products.append(given[0]) or product(*given))
    with pretending(monkeypatch):
        large = loss.linear_cross_entropy(features.to("cuda"), weight.to("cuda"), None, targets.to("cuda"))
        torch.testing.assert_close(large.cpu(), small)
    assert [len(rows) for rows in products] == [6, 6]  # for the logits, and for the gradient of the features


def table_of_gpu_sh(folder: Path, **environment: str) -> tuple[int, list[tuple[str, str]]]:
    """The exit status of gpu.sh, and name and result of each row."""
    table = folder / "gpu.md"
    command = ["sh", str(Path(__file__).with_name("gpu.sh")), "", table.name]
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, check=False, capture_output=True)
    rows = [line.strip("| ").split(" | ") for line in table.read_text().splitlines()[2:]]
    assert all(len(row) == 4 for row in rows), done.stderr
    return done.returncode, [(row[0], row[-1]) for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler of C++")
def test_a_cpu_takes_the_place_of_a_gpu(tmp_path: Path) -> None:
    status, rows = table_of_gpu_sh(tmp_path, DEVICE="cpu", PYTHON=sys.executable)
    assert rows == [(name, "ok") for name, _ in rows] and len(rows) == 11
    assert status == 0


def test_rows_that_fail_do_not_stop_the_others(tmp_path: Path) -> None:
    for python in ("false", "true"):  # without a figure a row has failed too
        status, rows = table_of_gpu_sh(tmp_path, PYTHON=python)
        assert (status, len(rows), {result for _, result in rows}) == (1, 11, {"failed"})


def test_training_says_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert describe_products(cpu, "float32") == ""
    assert describe_products(cpu, "bfloat16") == ", bfloat16"
    assert describe_products(cuda, "float32") == ", float32, TF32 off"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert describe_products(cuda, "bfloat16") == ", bfloat16, TF32 on"
