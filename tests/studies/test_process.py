"""Trainings forked from a process with their imports equal those of other processes, and end as these do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.studies.small import study
from tfkit import __version__
from tfkit.studies.process import Job

pytestmark = pytest.mark.full


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork from a process that has imported nothing, if none runs yet."""
    monkeypatch.setattr("tfkit.studies.process.PRELOADED", [])


@pytest.mark.usefixtures("cold")
def test_a_job_has_its_own_status_and_log(tmp_path: Path) -> None:
    jobs = [Job([word], tmp_path / f"{word}.txt") for word in ("--version", "nothing")]
    for job in jobs:
        job.start()
    assert [job.wait() for job in jobs] == [0, 2] and jobs[0].poll() == 0
    assert (tmp_path / "--version.txt").read_text() == f"tfkit {__version__}\n"
    assert "No such command 'nothing'" in (tmp_path / "nothing.txt").read_text()
    jobs[0].stop()  # a no-op


@pytest.mark.usefixtures("cold")
def test_an_interrupt_is_not_lost_at_the_start_of_a_job(tmp_path: Path) -> None:
    file = study(tmp_path, more={"train": {"steps": 10**6, "evaluate_every": 10**6, "checkpoint_every": 10**6}})
    jobs = [Job(["train", str(file), "--out", str(tmp_path / str(number))], tmp_path / "log") for number in range(4)]
    for job in jobs:
        job.start()
        job.stop()
    assert {job.wait() for job in jobs} == {130}


SCRIPT = """
import sys
from pathlib import Path
from tfkit.studies.process import Job
print("imported")
job = Job(["--version"], Path("log.txt"))
job.start()
print(job.wait())
"""


@pytest.mark.slow
def test_the_script_that_starts_a_job_needs_no_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    line = [sys.executable, "script.py"]
    found = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "imported\n0\n", found.stderr


@pytest.mark.slow
def test_a_forked_training_writes_the_same_bits(tmp_path: Path) -> None:
    file = study(tmp_path, more={"train": {"steps": 30, "evaluate_every": 10, "checkpoint_every": 30, "metrics": []}})
    words = [["train", str(file), "--set", "study=none", "--out", str(tmp_path / name)] for name in ("warm", "cold")]
    job = Job(words[0], tmp_path / "warm.txt", 2)
    job.start()
    environment = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-m", "tfkit", *words[1]], env=environment, check=True, timeout=120)
    assert job.wait() == 0
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
    job = Job(["train", str(file), "--set", "study=none", "--out", str(tmp_path / "run")], tmp_path / "log", 1)
    job.start()
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert job.poll() is None
        time.sleep(0.1)
    job.stop()
    assert job.wait() == 130
    assert list((tmp_path / "run" / "checkpoints").iterdir())
