"""`study.keep`: what is left of a finished run, and what still works on it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from tests.studies.small import replaced, study, tfkit
from tfkit.core.errors import RunError
from tfkit.run import load_run
from tfkit.runs.card import is_ours
from tfkit.runs.folder import CARD, CHECKPOINTS, ENVIRONMENT, REMOVED, WEIGHTS, RunFolder
from tfkit.storage import checksums
from tfkit.storage.files import FolderLock
from tfkit.studies.plan_file import reduce
from tfkit.studies.run_list import runs_in

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A study of two runs that keeps the scores, and what its command printed."""
    folder = tmp_path_factory.mktemp("keep")
    study(folder, compare=["wide"], seeds=1, keep="scores")
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        return folder, tfkit("study", "small.yaml", folder=folder)


@pytest.fixture
def copy(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with all its files."""
    folder = tmp_path_factory.mktemp("whole")
    study(folder)
    assert tfkit("train", "small.yaml", "--out", "run", folder=folder).exit_code == 0
    return folder / "run"


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check_manifest(run: Path) -> None:
    """Every listed file is there and has its checksum."""
    listed = checksums.read_sums(run)
    assert listed
    for name in listed:
        checksums.check(run, name)


def test_scores_are_kept_without_weights(trained: tuple[Path, Result]) -> None:
    folder, printed = trained
    assert printed.exit_code == 0, printed.output
    for name in ("baseline-s0", "wide-s0"):
        run = folder / "studies" / "small" / "runs" / name
        assert not (run / WEIGHTS).exists() and not (run / CHECKPOINTS).exists()
        assert RunFolder(run).removed == (CHECKPOINTS, WEIGHTS)
        assert size(run) < 30_000
        assert is_ours(run / CARD) and "tfkit prove" not in (run / CARD).read_text()
        check_manifest(run)
    data = json.loads((folder / "studies" / "small" / "results.json").read_text())
    assert [run["state"] for arm in data["arms"] for run in arm["runs"]] == ["done", "done"]
    assert not data["altered"]


def test_a_reduced_study_is_compared_and_not_repeated(copy: Path) -> None:
    folder = copy / "studies" / "small"
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    again = tfkit("study", "small.yaml", folder=copy)
    assert again.exit_code == 0, again.output
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    found = tfkit("compare", folder, "--json", folder=copy)
    assert json.loads(found.stdout) == json.loads((folder / "results.json").read_text())
    runs = [folder / "runs" / name for name in ("baseline-s0", "wide-s0")]
    assert tfkit("compare", *runs, "--measure", "valid.loss", folder=copy).exit_code == 0
    rows = runs_in([folder])
    assert [row.values["status"] for row in rows] == ["finished", "finished"]
    assert all(row.values["step"] == 2 and row.values["valid.loss"] > 0 for row in rows)


def test_what_is_gone_is_named(copy: Path) -> None:
    run = copy / "studies" / "small" / "runs" / "baseline-s0"
    with pytest.raises(RunError, match=r"model.safetensors: is missing: a study deleted it \(study.keep: scores\)"):
        load_run(run)
    line = ("train", "small.yaml", "--set", "train.seed=0", "--out", run, "--resume")
    again = tfkit(*line, folder=copy)
    assert again.exit_code == 0
    assert again.output == f"{run}: already finished\nnext: tfkit show {run}\n"
    assert tfkit("show", run, folder=copy).exit_code == 0
    more = tfkit(*line, "--set", "train.steps=4", folder=copy)
    assert more.exit_code == 2
    assert "a study has deleted its checkpoints (study.keep), so it cannot be resumed" in " ".join(more.output.split())


def test_keeping_more_does_not_restore_files(copy: Path) -> None:
    again = tfkit("study", "small.yaml", "--set", "study.keep=all", folder=copy)
    assert again.exit_code == 0
    told = "note: study.keep: all does not restore the deleted files of 2 finished runs"
    assert told in " ".join(again.output.split())
    assert "note:" not in tfkit("study", "small.yaml", folder=copy).output


def test_keep_weights_and_later_scores(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are enough to load a run and to start from it; a later `keep: scores` reduces finished runs too."""
    replaced(monkeypatch)
    shutil.rmtree(copy / "studies")
    study(copy, compare=["wide"], seeds=1, keep="weights")
    assert tfkit("study", "small.yaml", folder=copy).exit_code == 0
    run = copy / "studies" / "small" / "runs" / "baseline-s0"
    check_manifest(run)
    assert not (run / CHECKPOINTS).exists() and load_run(run).model is not None
    assert "tfkit prove" in (run / CARD).read_text()
    started = ("train", "small.yaml", "--set", f"train.init_from={run}", "--out", copy / "warm")
    assert tfkit(*started, folder=copy).exit_code == 0
    kept = tfkit("study", "small.yaml", "--set", "study.keep=scores", folder=copy)
    assert kept.exit_code == 0, kept.output
    assert not (run / WEIGHTS).exists()
    check_manifest(run)


def test_a_run_in_use_is_left_alone(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    before = sorted(out.rglob("*"))
    lock = FolderLock.take(out, "trained")
    try:
        reduce(RunFolder(out), "scores")
        assert [path for path in sorted(out.rglob("*")) if path.name != ".lock"] == before
    finally:
        lock.release()


@pytest.mark.parametrize("after", range(1, 6))
def test_an_interrupted_reduction_is_completed(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Killed before any deletion, the run is finished still, its manifest holds, and the next call ends the work."""
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    notes = out / CHECKPOINTS / "notes.txt"
    notes.write_text("mine")
    calls = 0

    def stopping(path: object, *rest: object, **more: object) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt
        real(path, *rest, **more)  # type: ignore[arg-type]

    real = os.unlink
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", stopping)
        with pytest.raises(KeyboardInterrupt):
            reduce(RunFolder(out), "scores")
    check_manifest(out)
    reduce(RunFolder(out), "scores")
    check_manifest(out)
    assert json.loads((out / ENVIRONMENT).read_text())[REMOVED] == [CHECKPOINTS, WEIGHTS]
    assert not (out / WEIGHTS).exists() and [path.name for path in (out / CHECKPOINTS).iterdir()] == ["notes.txt"]
    assert notes.read_text() == "mine"


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    study(tmp_path, keep="nothing")
    found = tfkit("check", "small.yaml", folder=tmp_path)
    assert found.exit_code == 2
    assert "study.keep" in found.output and "'scores', 'weights' or 'all'" in " ".join(found.output.split())
