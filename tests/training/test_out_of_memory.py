"""Memory that is not enough: the message says what to change, and names the last complete checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.small import small, trained
from tests.training.test_processes import recipe
from tfkit.core.machine import is_out_of_memory
from tfkit.training import planning
from tfkit.training.division import Division
from tfkit.training.planning import OutOfMemory
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare

CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
ERRORS = [RuntimeError(f"{CPU} 8 bytes"), torch.OutOfMemoryError("CUDA out of memory."), MemoryError()]


@pytest.mark.full
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failed_allocation_says_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    backward, calls = Division.backward, []

    def failing(*given: object) -> object:
        calls.append(1)
        if len(calls) == 6:
            raise error
        return backward(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Division, "backward", failing)
    values = {"steps": 8, "checkpoint_every": 2, "evaluate_every": 8}
    loaded = recipe(tmp_path, {"data.batch": {"size": 8}}, **values)
    with pytest.raises(OutOfMemory) as caught:
        trained(loaded, tmp_path / "run")
    said = str(caught.value)
    assert said.startswith(f"step 6: out of memory on cpu; {planning.ADVICE}")
    assert said.endswith("The checkpoint of step 4 is complete; --resume continues from it with the same data.batch")
    monkeypatch.undo()
    again = recipe(
        tmp_path, {"data.batch": {"size": 8}}, steps=8, checkpoint_every=2, evaluate_every=8, recompute="all"
    )
    run = trained(again, tmp_path / "run", resume=True)
    assert len((run.folder / "metrics.jsonl").read_text().splitlines()) == 8


def test_other_errors_are_left_alone() -> None:
    assert not any(map(is_out_of_memory, (RuntimeError("shapes differ"), ValueError("out of memory"))))


@pytest.mark.full
def test_a_batch_larger_than_the_machine_is_refused_beforehand(tmp_path: Path) -> None:
    """A real one: the scores of 2 x 65,536 x 65,536 alone are 32 GiB and more."""
    (tmp_path / "train.txt").write_text("one two three four five six\n" * 12_000)
    values = {"model.max_length": 65_536, "data.batch": {"size": 1}, "objective.join": True}
    with pytest.raises(OutOfMemory, match=r"a batch of 1 row of 65,536 tokens takes .* cpu has ") as caught:
        trained(small(tmp_path, values, evaluate_every=3), tmp_path / "run")
    assert str(caught.value).endswith(planning.ADVICE)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_what_a_step_needs_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(recipe(tmp_path, {"data.batch": {"size": 16}, "model.num_layers": 4}), Reporter())
    planning.check_fits(task, 1)
    monkeypatch.setattr(planning, "free_memory", lambda _: 30 * 1024)
    with pytest.raises(OutOfMemory, match=r"a batch of 16 rows of 8 tokens takes .* but cpu has 30\.0 KiB"):
        planning.check_fits(task, 1)
