"""The printed file: equal outputs and training, few lines, its inputs, and its use where there is no tfkit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tfkit
from tests.shipped import MODELS as EVERY
from tests.shipped import shipped
from tests.training.small import RECIPE
from tfkit.models.build import build_model
from tfkit.plain.code import code, printed
from tfkit.plain.inputs import Unprintable, answer, chosen, tensors
from tfkit.plain.smaller import smaller
from tfkit.recipe.load import Recipe

from ..sampling import each, looped
from .__main__ import FROZEN

# their mixers pass a state from chunk to chunk in a loop
LOOPS = (
    *("bamba-9b", "mamba2-2.7b", "kimi-linear-48b-a3b", "olmo-hybrid-7b"),
    *("qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "qwen3.5-9b"),
)
MODELS = [name for name in EVERY if name not in LOOPS]
FULL, SLOW = pytest.mark.full, pytest.mark.slow
FEW = ["gpt2", "bert-base", "transformer-base", "mixtral-8x7b", "gemma-2-2b"]
SIZES = ((1, 4, 5), (3, 33, 21), (2, 180, 170))  # batch, tokens, tokens of the source: none of the proof's
MOST, MEDIAN = 300, 137  # lines
BANDED = {"ettin-decoder-150m": 1e-6}  # largest difference: the model computes its band in tiles
INPUTS = ["gpt2 attention_mask", "gpt2 segment_ids", "gpt2 position_ids", "bert-base token_type_ids"]
INPUTS += ["bert-base segment_ids", "bart-base position_ids", "bart-base decoder_attention_mask"]
ELSEWHERE = """
import json, runpy, sys, torch
sys.modules["tfkit"] = None  # to import it raises ImportError
for file, weights, inputs in json.loads(sys.argv[1]):
    printed = runpy.run_path(file)
    print(printed["generate"](printed["load"](weights), *map(torch.tensor, inputs), 6).tolist())
"""


@pytest.fixture(autouse=True)
def products_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFKIT_PRODUCTS", "mkl")


@cache
def small(name: str) -> Recipe:
    return smaller(shipped(name), 2) or shipped(name)


def executed(text: str, device: str = "cpu") -> nn.Module:
    """Run a text and build its last class."""
    space: dict[str, Any] = {"__name__": "printed"}
    exec(text, space)
    with torch.device(device):
        found: nn.Module = [one for one in space.values() if isinstance(one, type)][-1]()
    return found.eval()


def weights(module: nn.Module) -> set[tuple[object, ...]]:
    """Return the name, shape and dtype of each entry of the state_dict, and whether it is trained."""
    trained = {name for name, one in module.named_parameters(remove_duplicate=False) if one.requires_grad}
    return {(name, one.shape, one.dtype, name in trained) for name, one in module.state_dict().items()}


def twins(recipe: Recipe, text: str) -> tuple[nn.Module, nn.Module]:
    """Build the model with noise on its weights, and the module of a text with the same weights."""
    model, twin = build_model(recipe.blueprint(), seed=1).eval(), executed(text)
    generator = torch.Generator().manual_seed(1)
    for weight in model.state_dict().values():
        if weight.is_floating_point():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    assert not weights(twin) ^ weights(model)
    twin.load_state_dict(model.state_dict())
    return model, twin


def agree(recipe: Recipe, inputs: Sequence[str] = (), tolerance: float = 0.0) -> str:
    """Print a recipe, execute the text and compare the outputs at other sizes. Return the text."""
    text, plan = printed(recipe, inputs), recipe.blueprint()
    model, twin = twins(recipe, text)
    most = min(stack.max_length or 1000 for stack in plan.stacks())
    for batch, time, source in SIZES:
        call = tensors(plan, chosen(plan, inputs), batch, min(time, most), min(source, most), "cpu", seed=1)
        with torch.no_grad():
            wanted, found = answer(model(**call)), twin(**call)
        assert wanted is not None and found.shape == wanted.shape
        off = float((found - wanted).abs().max() / wanted.abs().max())
        assert off <= tolerance, f"off by {off:.0e} at {batch} x {time}"
    return text


TIERS = [FEW, pytest.param([*MODELS[::5], *INPUTS], marks=FULL), pytest.param(MODELS, marks=SLOW)]


@pytest.mark.parametrize("cases", TIERS, ids=len)
def test_a_small_model_is_equal_bit_for_bit(cases: list[str]) -> None:
    """A case is a model and inputs that are chosen."""
    rows = [(name, more) for name, *more in map(str.split, cases)]
    each(rows, lambda name, more: agree(small(name), more, BANDED.get(name, 0.0)))


@pytest.mark.parametrize("names", [pytest.param(FEW, marks=FULL), pytest.param(MODELS, marks=SLOW)], ids=len)
def test_at_its_real_size_it_is_short_and_has_the_weights(names: list[str]) -> None:
    texts = {name: printed(shipped(name)) for name in names}
    lines = {name: text.count("\n") for name, text in texts.items()}
    assert max(lines.values()) <= MOST and (names == FEW or median(lines.values()) <= MEDIAN), lines

    def check(name: str, text: str) -> None:
        assert not weights(executed(text, "meta")) ^ weights(build_model(shipped(name).blueprint(), device="meta"))

    each(texts.items(), check)


@pytest.mark.full
@pytest.mark.parametrize("names", [LOOPS[:1], pytest.param(LOOPS, marks=SLOW)], ids=len)
def test_recurrences_over_chunks_are_refused(names: tuple[str, ...]) -> None:
    for name in names:
        with pytest.raises(Unprintable, match="depends on the length of the text: it has a Python loop over time"):
            printed(small(name))


@looped(("name", "file"), FROZEN.items())
def test_the_text_is_what_was_read(name: str, file: Path) -> None:
    assert code(name) == file.read_text("utf-8"), "write it with: python -m tests.plain, and read what changed"


@pytest.mark.full
@looped("name", ["gpt2", "llama-2-7b", "gemma-2-2b", "mixtral-8x7b", "t5-small", "bart-base"])
def test_it_trains_as_the_model(name: str) -> None:
    """Gradients of T5's bias are summed in another order."""
    plan, both = small(name).blueprint(), twins(small(name), printed(small(name)))
    call, targets = tensors(plan, chosen(plan), 2, 24, 20, "cpu"), torch.arange(48) % 61
    optimizers = [torch.optim.Adam(one.parameters(), 0.01) for one in both]
    losses = []
    for _ in range(10):
        pair = [F.cross_entropy(one.flatten(0, 1), targets) for one in (both[0](**call).logits, both[1](**call))]
        for loss, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append([loss.item() for loss in pair])
        assert abs(losses[-1][0] - losses[-1][1]) <= 1e-5 * (name == "t5-small")
    assert losses[-1] < losses[0]


@pytest.mark.full
def test_it_is_formatted(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for name in MODELS[::5]:
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(printed(small(name)), encoding="utf-8")
    for command in ("format --diff", "check"):
        words = [*f"-m ruff {command} --isolated --no-cache --line-length=120".split(), str(tmp_path)]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_it_loads_a_run_and_generates_without_tfkit(tmp_path: Path) -> None:
    ids, names = [[3, 1, 4], [1, 5, 2]], ["input_ids", "attention_mask", "decoder_input_ids"]
    made, wanted = [], []
    for kind, *inputs in (("decoder", ids), ("encoder_decoder", ids, [[1, 1, 1], [1, 1, 0]], [[1], [1]])):
        embedding = {"type": "tokens", "shared": len(inputs) > 1}
        model = {**RECIPE["model"], "type": kind, "vocab_size": 20, "max_length": 64, "embedding": embedding}
        recipe = tfkit.load_recipe({"tfkit": 1, "model": model})
        run = tfkit.save(tfkit.build(recipe, seed=3), recipe, None, tmp_path / kind)
        (tmp_path / f"{kind}.py").write_text(code(recipe), encoding="utf-8")
        made.append((str(tmp_path / f"{kind}.py"), str(run.weights), inputs))
        call = dict(zip(names, map(torch.tensor, inputs), strict=False))
        for _ in range(6):  # greedily, without a cache
            token = run.model(**call).logits[:, -1:].argmax(dim=-1)
            call[[*call][-1]] = torch.cat(([*call.values()][-1], token), dim=1)
        wanted.append([*call.values()][-1].tolist())
    words = [sys.executable, "-I", "-c", ELSEWHERE, json.dumps(made)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert list(map(json.loads, done.stdout.splitlines())) == wanted, done.stderr
