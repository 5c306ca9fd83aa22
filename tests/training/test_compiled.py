"""Compiled steps: the draws are those of eager steps, in one process and in two, and what cannot be held is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.small import trained
from tests.training.test_processes import ENCODER, EXPERTS, PAIR, differences, recipe, run
from tfkit.core.errors import RecipeError, RunError
from tfkit.functional.dropout import Draws, Dropout, drawing, draws_here, number_calls

pytestmark = pytest.mark.full

RECURRENT = {
    "model.position": "none",
    "model.layer": {"mixer": "lstm", "attention": "none", "sublayers": ["mixer", "feedforward"]},
}


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


KINDS: dict[str, dict[str, Any]] = {"decoder": {}, "encoder": ENCODER, "pair": PAIR}


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as torch.compile does, and run the operations of the graph one by one."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiler(model, backend="eager"))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Dropout(0.25), Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(self.inner(x) + 1)
        return out


def test_a_graph_draws_what_eager_code_draws() -> None:
    module = Twice()
    graph = torch.compile(module, backend="eager", fullgraph=True)
    number_calls(graph)  # type: ignore[arg-type]
    for batch in range(4):
        results = []
        for forward in (module, graph):
            with drawing(Draws((7, batch), batch, 3)):
                results.append((forward(torch.ones(3, 5 + batch)), module.inner(torch.ones(9)), draws_here()))
        (one, after, draws), (other, later, redraws) = results
        assert torch.equal(one, other) and torch.equal(after, later) and draws == redraws
        assert 0 < int((one == 0).sum()) < one.numel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("plainly")
def test_a_traced_run_has_the_losses_of_an_eager_one(tmp_path: Path, kind: str) -> None:
    eager, traced, both = (
        run(
            recipe(tmp_path, KINDS[kind], steps=6, evaluate_every=3, compile=count > 0),
            tmp_path / str(count),
            count or 1,
        )
        for count in range(3)
    )
    assert max(differences(eager, traced)) == 0
    assert max(differences(eager, both)) < 2e-5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler of C++")
def test_compiled_kernels_round_within_the_tolerance(tmp_path: Path) -> None:
    for on in (False, True):
        trained(recipe(tmp_path, steps=4, evaluate_every=4, compile=on), tmp_path / str(on))
    assert 0 < max(differences(*(steps_of(tmp_path / str(on)) for on in (False, True)))) < 2e-5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.recompute": 1}, "train.recompute cannot be compiled"),
        ({"train.teacher": {"run": "teacher"}}, "train.teacher cannot be compiled"),
        ({"model.layer.feedforward": EXPERTS}, "every expert would process every token"),
        (RECURRENT, "mixer 'lstm' cannot be compiled to a single graph"),
    ],
)
def test_what_is_not_compiled_is_named_in_the_recipe(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(tmp_path, {"train.compile": True, **overrides})


def test_a_compiler_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RecipeError, match=r"train.compile: CPU kernels require a C\+\+ compiler"):
        trained(recipe(tmp_path, compile=True), tmp_path / "run")


def test_what_the_compiler_says_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such kernel")

    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiler(model, backend=broken))
    with pytest.raises(RunError, match=r"train.compile: torch cannot .*: no such kernel; train.compile: false works"):
        trained(recipe(tmp_path, compile=True), tmp_path / "run")
