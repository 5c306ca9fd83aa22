"""A study is killed at any of its file events: no run is lost or repeated, and the same line goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kills import kills, shares
from tests.studies.small import replaced, study, tfkit
from tfkit.runs.folder import RunFolder

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in the process of the command, without waiting for the disk."""
    replaced(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def finished(folder: Path) -> dict[str, int]:
    """The runs in a folder that have ended, with the time at which their weights were written."""
    files = folder.glob("runs/*/model.safetensors")
    runs = [RunFolder(file.parent) for file in files]
    return {run.path.name: (run / "model.safetensors").stat().st_mtime_ns for run in runs if run.known.get("finished")}


def weights(folder: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in folder.glob("runs/*/model.safetensors")}


def leftovers(folder: Path) -> list[str]:
    """What no finished command leaves; the remains of a killed trial are removed after an hour."""
    return [str(path) for path in folder.rglob("*") if path.name.endswith(".claim") or ".now" in path.name]


@shares(211, 23)
@pytest.mark.usefixtures("quick")
def test_the_same_line_ends_a_study_after_any_kill(tmp_path: Path, share: int) -> None:
    study(tmp_path, compare=["wide"], seeds=1)
    folder, line = tmp_path / "studies" / "small", ("study", "small.yaml")
    assert tfkit(*line, folder=tmp_path).exit_code == 0
    unbroken = weights(folder)
    assert set(unbroken) == {"baseline-s0", "wide-s0"}
    seen = set()
    shutil.rmtree(folder)
    for event in kills(lambda: tfkit(*line, folder=tmp_path), share):
        there = finished(folder) if folder.is_dir() else {}
        seen.add(len(there))
        again = tfkit(*line, folder=tmp_path)
        assert again.exit_code == 0, (event, again.output)
        after = finished(folder)
        assert {name: after[name] for name in there} == there, event
        assert weights(folder) == unbroken and not leftovers(folder), event
        data = json.loads((folder / "results.json").read_text())
        assert [run["state"] for arm in data["arms"] for run in arm["runs"]] == ["done", "done"], event
        assert (folder / "report.html").is_file()
        shutil.rmtree(folder)
    assert share > 100 or seen == {0, 1, 2}


@pytest.mark.slow
def test_a_training_whose_command_was_killed_ends_once(tmp_path: Path) -> None:
    """The next command waits for it, and repeats nothing."""
    train = {"steps": 3000, "evaluate_every": 500, "checkpoint_every": 500, "metrics": []}
    study(tmp_path, more={"train": train}, compare=["wide"], seeds=1)
    line, folder = [sys.executable, "-m", "tfkit", "study", "small.yaml"], tmp_path / "studies" / "small"
    first = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (begun := [file for file in folder.glob("runs/*/metrics.jsonl") if file.stat().st_size > 300]):
        assert first.poll() is None
        time.sleep(0.1)
    first.kill()
    first.wait()
    again = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    name = begun[0].parent.name
    assert f"{name}: is trained by process" in again.stdout
    assert len(json.loads((begun[0].parent / "run.json").read_text())["starts"]) == 1
    assert all(len(json.loads(file.read_text())["starts"]) == 1 for file in folder.glob("runs/*/run.json"))
    assert not leftovers(folder)
