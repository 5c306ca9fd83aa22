"""Checkpoints written while training continues: whole, of their own step, waited for, and never lost in silence."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.small import outcome, small, trained
from tfkit.core.errors import RunError
from tfkit.training import checkpoint, writer
from tfkit.training.checkpoint import Checkpoints, Progress, Snapshot, restore
from tfkit.training.writer import CheckpointWriter

WRITE = checkpoint._write


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [value for entry in optimizer.state.values() for value in entry.values()]
    return [value.clone() for value in (*model.parameters(), *moments)]


def test_a_checkpoint_is_that_of_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def waiting(*given: Any) -> None:
        assert released.wait(30)
        WRITE(*given)

    monkeypatch.setattr(checkpoint, "_write", waiting)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    done: list[tuple[int, Path]] = []
    writes = CheckpointWriter(Checkpoints(tmp_path), lambda snapshot, path: done.append((snapshot.step, path)))
    for step in (1, 2):  # the memory of the first copy is used again
        released.clear()
        stepped(model, optimizer)
        before = state(model, optimizer)
        writes.write(Snapshot.of(model, optimizer, Progress(step=step)))
        stepped(model, optimizer)
        writes.poll()
        assert len(done) == step - 1  # it is not whole yet
        released.set()
        writes.wait()
        assert done[-1] == (step, tmp_path / f"step-0000000{step}")
        other = nn.Linear(4, 4)
        again = torch.optim.Adam(other.parameters(), lr=0.1)
        restore(done[-1][1], other, again)
        assert all(map(torch.equal, before, state(other, again)))
    writes.close()


@pytest.mark.full
def test_the_end_waits_and_every_bit_is_that_of_writing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def slow(*given: Any) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])
        threading.Event().wait(0.2)
        WRITE(*given)

    monkeypatch.setattr(checkpoint, "_write", slow)
    loaded = small(tmp_path, steps=6)
    later = outcome(trained(loaded, tmp_path / "later").folder)
    assert threads == {"MainThread", "checkpoint"}  # the first one, of step 0, is part of the folder
    threads.clear()
    monkeypatch.setattr(writer, "free_memory", lambda: 0)  # none for a copy
    assert outcome(trained(loaded, tmp_path / "at_once").folder) == later
    assert threads == {"MainThread"}


@pytest.mark.full
def test_a_full_disk_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, snapshot: Snapshot) -> None:
        if snapshot.step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        WRITE(folder, snapshot)

    monkeypatch.setattr(checkpoint, "_write", full)
    loaded = small(tmp_path, steps=40)
    with pytest.raises(RunError, match="step-00000004: the checkpoint cannot be written: No space left on device"):
        trained(loaded, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 4 <= json.loads(lines[-1])["step"] <= 6  # the next checkpoint waits for it
    monkeypatch.undo()
    run = trained(small(tmp_path, steps=6), tmp_path / "run", resume=True)
    assert outcome(run.folder) == outcome(trained(small(tmp_path, steps=6), tmp_path / "unbroken").folder)
