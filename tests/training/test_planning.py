"""The plan of a training: its bytes are those that a training takes, and its line is one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.training.test_processes import ENCODER, EXPERTS, PAIR, recipe
from tests.training.test_recompute import DEEP, gradients, task_of
from tfkit.cli.main import main
from tfkit.core.errors import UsageError
from tfkit.functional.loss import CHUNK_ROWS
from tfkit.recipe.load import load_recipe
from tfkit.training.division import side_of
from tfkit.training.planning import TrainingPlan, plan_training
from tfkit.training.setup import Task

pytestmark = pytest.mark.full

KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"objective.join": True, "model.vocab_size": 9},
    "plain": {"objective.join": True, "model.vocab_size": 9, "model.layer.attention.dropout": 0},
    "muon": {"objective.join": True, "model.vocab_size": 9, "train.optimizer": "muon"},
    "encoder": {**ENCODER, "model.vocab_size": 12},
    "pair": {**PAIR, "model.vocab_size": 12},
    "experts": {"objective.join": True, "model.vocab_size": 9, "model.layer.feedforward": EXPERTS},
}


def plan_of(
    folder: Path, kind: str, devices: int = 1, room: int = 10**9, **train: Any
) -> tuple[TrainingPlan, Task, int]:
    """The plan of a recipe for the length of its first batch, the task, and the rows of that batch."""
    loaded = recipe(folder, {**DEEP, "data.batch": {"size": 4}, "model.d_model": 32, **KINDS[kind]}, **train)
    task = task_of(loaded)
    rows, length = side_of(task.train.make(0, 0, task.train.plan(0)[0])).shape
    return plan_training(loaded, devices, room, length), task, rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_is_what_a_training_takes(tmp_path: Path, kind: str) -> None:
    plan, task, rows = plan_of(tmp_path, kind)
    _, kept = gradients(task)
    optimizer = task.settings.optimizer.build().make(task.trained, 0.0)
    optimizer.step()
    layout = plan.layouts[0]
    state = [one for entry in optimizer.state.values() for one in entry.values() if isinstance(one, torch.Tensor)]
    assert layout.memory.weights == sum(one.nbytes for one in task.model.parameters())
    assert layout.memory.gradients == sum(one.grad.nbytes for one in task.model.parameters() if one.grad is not None)
    assert layout.memory.optimizer == sum(one.nbytes for one in state)
    assert kept == pytest.approx(layout.memory.activations + (rows - 1) * layout.row, rel=0.15)


def test_the_largest_batch_fits_and_one_row_more_does_not(tmp_path: Path) -> None:
    plan, *_ = plan_of(tmp_path, "decoder", devices=4, room=10**6)
    for one in plan.layouts:
        assert one.needed(one.rows // 4) <= 10**6 < one.needed(one.rows // 4 + 1)
    assert [(one.recompute, one.shard) for one in plan.layouts] == [
        (0, False),
        ("all", False),
        (0, True),
        ("all", True),
    ]
    assert plan.layouts[1].rows > plan.layouts[0].rows > 0
    assert plan.command == "torchrun --nnodes 1 --nproc-per-node 4 -m tfkit train recipe"


def test_the_logits_of_a_chunk_are_counted(tmp_path: Path) -> None:
    small, large = (plan_of(tmp_path, "decoder", **more)[0].layouts[0] for more in ({}, {"precision": "bfloat16"}))
    assert (small.logits, large.logits) == (9 * 4, 9 * 8)
    rows = CHUNK_ROWS // small.length + 1
    steps = [small.needed(n + 1) - small.needed(n) for n in (1, rows)]
    assert steps == [small.row + small.length * small.logits, small.row]


def test_the_line_recomputes_and_accumulates_where_it_must(tmp_path: Path) -> None:
    large, *_ = plan_of(tmp_path, "decoder")
    whole, again = large.layouts
    room = again.needed(4)
    plan, *_ = plan_of(tmp_path, "decoder", room=room)
    assert plan.layouts[0].rows < 4 == plan.layouts[1].rows
    assert plan.command == "tfkit train recipe --set train.recompute=all"
    plan, *_ = plan_of(tmp_path, "decoder", room=again.needed(1))
    assert plan.command.endswith("--set data.batch.size=1 --set train.accumulate=4")
    plan, *_ = plan_of(tmp_path, "decoder", room=whole.memory.fixed)
    assert plan.chosen is None and plan.command == ""


def test_weights_are_divided_where_they_must_be(tmp_path: Path) -> None:
    plan, task, _ = plan_of(tmp_path, "plain", devices=4)
    whole, _, part, _ = (one.memory for one in plan.layouts)
    layers = [sum(weight.nbytes for weight in layer.parameters()) for layer in task.model.stack("decoder").layers]
    assert part.optimizer == -(-whole.optimizer // 4)
    assert part.weights == -(-whole.weights // 4) + whole.weights - sum(layers) + 2 * max(layers)
    plan, *_ = plan_of(tmp_path, "plain", devices=4, room=plan.layouts[3].needed(1))
    assert "--set train.recompute=all --set train.parallel.shard=true" in plan.command
    assert all(one.shard for one in plan_of(tmp_path, "plain", 4, parallel={"shard": True})[0].layouts)


def test_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="planning does not support adapters"):
        plan_of(tmp_path, "decoder", adapter="lora")


def test_what_is_not_counted_is_refused(tmp_path: Path) -> None:
    def planned(**train: Any) -> None:
        plan_training(recipe(tmp_path, {**DEEP, "model.d_model": 32}, **train), 3, 10**9)

    with pytest.raises(UsageError, match="planning does not count the teacher's weights"):
        planned(teacher={"run": str(tmp_path)})


@pytest.mark.parametrize(("devices", "nodes", "each"), [(2, 1, 2), (8, 1, 8), (9, 3, 3), (11, 11, 1), (24, 3, 8)])
def test_the_line_starts_as_many_processes_as_there_are_devices(devices: int, nodes: int, each: int) -> None:
    line = plan_training(load_recipe("translate-numbers"), devices, 10**9, 8).command
    assert line == f"torchrun --nnodes {nodes} --nproc-per-node {each} -m tfkit train translate-numbers"


def test_the_line_repeats_file_variants_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "my recipe.yaml"
    file.write_text("tfkit: 1\nextends: translate-numbers\nvariants: {thin: {model.d_model: 16}}\n")
    chosen = ["--variant", "thin", "--set", "train.recompute=1"]
    found = CliRunner().invoke(main, ["plan", str(file), *chosen, "--memory", "1GB", "--length", "8"])
    assert found.stdout.splitlines()[-1] == f"tfkit train '{file}' --variant thin --set train.recompute=1"


def test_the_command_prints_a_plan() -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["plan", "translate-numbers", "--set", "model.d_model=16", *arguments])

    found = run("--devices", "16", "--memory", "1GB", "--length", "32")
    assert found.stderr.startswith("translate-numbers: tracing training steps\n")
    assert found.exit_code == 0 and "16 devices of 1.0 GB" in found.stdout
    assert "torchrun --nnodes 2 --nproc-per-node 8 -m tfkit train translate-numbers" in found.stdout
    assert (
        "Not even one row fits: use several --devices and train.parallel.shard, which divides the weights"
        in run("--memory", "1MB").stdout
    )
    wrong = run("--memory", "much")
    assert wrong.exit_code == 2 and "expected a size such as 80GB, 24GiB or 500MB, got 'much'" in wrong.stderr
