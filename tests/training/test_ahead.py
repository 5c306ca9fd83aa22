"""Batches made ahead are those made one by one; errors come in their place, and nothing runs on afterwards."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small import outcome, small, trained
from tfkit.core.errors import DataError
from tfkit.training.ahead import AHEAD, Ahead
from tfkit.training.feed import Feed
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare

MASKED = {"objective": {"type": "masked_lm"}, "model.type": "encoder", "model.head.type": "masked_lm"}
MASKED |= {"data.tokenizer.special_tokens.mask": "<mask>"}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return prepare(small(tmp_path, MASKED), Reporter(False)).train


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
    whole = outcome(trained(small(tmp_path, MASKED, steps=9), tmp_path / "whole").folder)
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
            trained(small(tmp_path, MASKED, steps=9), tmp_path / "run")
    assert not threads()
    trained(small(tmp_path, MASKED, steps=9), tmp_path / "run", resume=True)
    found = outcome(tmp_path / "run")
    assert found["weights"] == whole["weights"] and found["metrics"] == whole["metrics"]
