"""Batches made ahead and checkpoints written later: the same bits, errors in their place, nothing left."""

from __future__ import annotations

import errno
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.small import ENCODER, outcome, small, trained
from tfkit.core.errors import DataError, RunError
from tfkit.runs import checkpoint
from tfkit.runs.checkpoint import Checkpoints, Progress, Snapshot, restore
from tfkit.training import publish
from tfkit.training.feed import AHEAD, Ahead, Feed
from tfkit.training.progress import Reporter
from tfkit.training.publish import CheckpointWriter
from tfkit.training.setup import prepare


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return prepare(small(tmp_path, ENCODER), Reporter(False)).train


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "batches"]


@pytest.mark.parametrize("start", [(0, 0), (1, 2)])
def test_the_batches_are_those_made_one_by_one(feed: Feed, start: tuple[int, int]) -> None:
    one_by_one = feed.made(feed.order(*start))
    with Ahead(feed, *start) as batches:
        for _ in range(10):
            with batches.working():
                found = next(batches)
            wanted = next(one_by_one)
            assert found[:2] == wanted[:2] and found.after == wanted.after == batches.state
            assert found.batch.keys() == wanted.batch.keys()
            assert all(torch.equal(found.batch[name], wanted.batch[name]) for name in wanted.batch)
    assert not threads()


def test_the_thread_works_only_during_steps(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], feed.make

    def counted(*place: Any) -> Any:
        made.append(place)
        return make(*place)

    monkeypatch.setattr(feed, "make", counted)
    with Ahead(feed) as batches:
        time.sleep(0.05)
        assert not made
        with batches.working():
            next(batches)
            time.sleep(0.1)
        assert len(made) == AHEAD + 1
        batches.waiting()
        next(batches)
        time.sleep(0.05)
        assert len(made) == AHEAD + 1 and batches.waiting() < 0.01


@pytest.mark.parametrize("kind", [DataError, ValueError])
def test_an_error_is_raised_in_its_place(
    tmp_path: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Feed.make

    def failing(self: Feed, epoch: int, batch: int, indices: Any) -> Any:
        if self.purpose == 1 and (epoch, batch) == (1, 1):
            raise kind("broken")
        return make(self, epoch, batch, indices)

    monkeypatch.setattr(Feed, "make", failing)
    with pytest.raises(kind) as caught:
        trained(small(tmp_path, steps=20), tmp_path / "run")
    place = "batch 1 of epoch 1"
    if kind is DataError:
        assert str(caught.value) == f"{place}: broken"
    else:
        assert caught.value.__notes__ == [f"raised for {place}"]
    done = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(done) == 4 and not threads()  # three batches of epoch 0, and one of epoch 1


@pytest.mark.full
def test_an_interrupt_ends_the_thread_and_resumption_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outcome(trained(small(tmp_path, ENCODER, steps=9), tmp_path / "whole").folder)
    loss = "tfkit.training.loop.scale_gradients"
    calls: list[int] = []

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return scale(*args)

    from tfkit.training.step import scale_gradients as scale

    with monkeypatch.context() as patch:
        patch.setattr(loss, interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(small(tmp_path, ENCODER, steps=9), tmp_path / "run")
    assert not threads()
    trained(small(tmp_path, ENCODER, steps=9), tmp_path / "run", resume=True)
    found = outcome(tmp_path / "run")
    assert found["weights"] == whole["weights"] and found["metrics"] == whole["metrics"]


# --- checkpoints written while training continues


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
    monkeypatch.setattr(publish, "free_memory", lambda: 0)  # none for a copy
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
