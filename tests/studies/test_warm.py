"""Trainings forked from a warm parent are those of processes of their own, and end as these do."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.studies.small import study
from tfkit import __version__
from tfkit.studies.process import ForkedJob, ForkServer, Here, LocalJob, can_fork, started

pytestmark = [pytest.mark.full, pytest.mark.skipif(not can_fork(), reason="trainings are forked on Linux only")]
SERVE = """
import time
from tfkit.studies.warm import WarmParent, train
words = WarmParent.here().serve()
if words == ["sleep"]:
    time.sleep(300)
elif words is not None:
    train(words)
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """A parent that has imported nothing, and so is there at once."""
    monkeypatch.setattr("tfkit.studies.process.PARENT", (sys.executable, "-c", SERVE))
    fork = ForkServer(3)
    yield fork
    fork.close()


def job_of(parent: ForkServer, log: Path, *words: str) -> ForkedJob:
    return ForkedJob(parent, parent.start(words, log), words, log)


def test_a_job_has_its_own_status_and_log(parent: ForkServer, tmp_path: Path) -> None:
    good = job_of(parent, tmp_path / "good.txt", "--version")
    bad = job_of(parent, tmp_path / "bad.txt", "nothing")
    assert (good.wait(), bad.wait(), good.poll()) == (0, 2, 0)
    assert (tmp_path / "good.txt").read_text() == f"tfkit {__version__}\n"
    assert "No such command 'nothing'" in (tmp_path / "bad.txt").read_text()
    assert not good.problem


def sleeping(parent: ForkServer, folder: Path) -> ForkedJob:
    """A job that has begun, and ends when it is interrupted."""
    job = job_of(parent, folder / "log.txt", "sleep")
    while job.job not in parent.began:
        parent.read(0.5)
    return job


def test_an_interrupted_job_ends(parent: ForkServer, tmp_path: Path) -> None:
    job = sleeping(parent, tmp_path)
    assert job.poll() is None
    job.interrupt()
    assert job.wait() == -signal.SIGINT
    job.interrupt()  # a no-op


def test_an_interrupt_is_not_lost_at_the_start_of_a_job(parent: ForkServer, tmp_path: Path) -> None:
    jobs = [job_of(parent, tmp_path / "log.txt", "sleep") for _ in range(20)]
    for job in jobs:
        job.interrupt()
    assert {job.wait() for job in jobs} == {-signal.SIGINT}


def test_jobs_outlive_their_parent_and_are_known_to_end(parent: ForkServer, tmp_path: Path) -> None:
    job = sleeping(parent, tmp_path)
    parent.process.kill()
    while not parent.is_lost:
        parent.read(0.5)
    assert job.poll() is None
    job.interrupt()
    assert job.wait() == 1
    late = job_of(parent, tmp_path / "late.txt", "--version")  # is started without a parent
    assert late.wait() == 0 and __version__ in (tmp_path / "late.txt").read_text()


def test_a_parent_ends_with_its_study(parent: ForkServer) -> None:
    parent.close()
    assert parent.process.returncode == 0


@pytest.mark.slow
def test_a_forked_training_writes_the_same_bits(tmp_path: Path) -> None:
    file = study(tmp_path, more={"train": {"steps": 30, "evaluate_every": 10, "checkpoint_every": 30, "metrics": []}})
    words = [["train", str(file), "--set", "study=none", "--out", str(tmp_path / name)] for name in ("warm", "cold")]
    here = Here()
    jobs = [here.start(words[0], tmp_path / "warm.txt", 2), LocalJob(started(words[1], tmp_path / "cold.txt", 2))]
    assert [job.wait() for job in jobs] == [0, 0]
    here.close()
    names = {one.relative_to(tmp_path / "cold") for one in (tmp_path / "cold").rglob("*") if one.is_file()}
    assert names == {one.relative_to(tmp_path / "warm") for one in (tmp_path / "warm").rglob("*") if one.is_file()}
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("warm", "cold")]
    assert weights[0] == weights[1]
    starts = [json.loads((tmp_path / name / "run.json").read_text())["starts"] for name in ("warm", "cold")]
    assert starts[0][0]["threads"] == starts[1][0]["threads"] == 2


@pytest.mark.slow
def test_an_interrupted_training_saves(tmp_path: Path) -> None:
    train = {"steps": 100_000, "evaluate_every": 50_000, "checkpoint_every": 50_000, "metrics": []}
    file = study(tmp_path, more={"train": train})
    here = Here()
    job = here.start(["train", str(file), "--set", "study=none", "--out", str(tmp_path / "run")], tmp_path / "log", 1)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert job.poll() is None
        time.sleep(0.1)
    job.interrupt()
    assert job.wait() == 130
    here.close()
    assert list((tmp_path / "run" / "checkpoints").iterdir())
