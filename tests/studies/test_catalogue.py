"""A study takes equal runs that exist, names those that were edited, and trains the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.studies.small import study
from tests.studies.test_keep import here
from tests.studies.test_ladder import Trained
from tests.studies.test_study import tfkit
from tfkit.recipe.settings.study import Keep
from tfkit.studies.keeping import reduce
from tfkit.training import environment
from tfkit.training.folder import RunFolder

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study `first` of two variants and two seeds, and the run runs/tiny of a third variant."""
    folder = tmp_path_factory.mktemp("catalogue")
    study(folder, "first", compare=["wide"])
    with pytest.MonkeyPatch.context() as patch:
        here(patch)
        assert tfkit("study", "first.yaml", folder=folder).exit_code == 0
    line = ("train", "first.yaml", "--variant", "norm=rms_norm", "--set", "train.seed=1", "--out", "runs/tiny")
    assert tfkit(*line, folder=folder).exit_code == 0
    return folder


@pytest.fixture
def copy(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files at another place, as seen by a study that trains in this process."""
    here(monkeypatch)
    return Path(shutil.copytree(first, tmp_path / "copy"))


def results(folder: Path, name: str = "second") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "studies" / name / "results.json").read_text())
    return data


def scores(folder: Path, name: str) -> dict[tuple[str, int], float]:
    arms = results(folder, name)["arms"]
    return {(arm["name"], run["seed"]): run["scores"]["valid.loss"] for arm in arms for run in arm["runs"]}


def test_only_new_variants_are_trained(copy: Path) -> None:
    study(copy, "second", compare=["wide", "norm"])
    printed = tfkit("study", "second.yaml", folder=copy)
    assert printed.exit_code == 0, printed.output
    assert sorted(Trained.began) == ["norm=rms_norm-s0"]
    assert "baseline-s0: taken from studies/first/runs/baseline-s0, not trained again" in printed.stdout
    assert "norm=rms_norm-s1: taken from runs/tiny, not trained again" in printed.stdout
    data = results(copy)
    assert len(data["reused"]) == 5 and data["reused"]["norm=rms_norm-s1"].endswith("runs/tiny")
    assert data["arms"][0]["runs"][0]["folder"] == "../../first/runs/baseline-s0"
    assert all(value == scores(copy, "second")[key] for key, value in scores(copy, "first").items())
    assert "## Runs taken from other folders" in (copy / "studies" / "second" / "report.md").read_text()
    Trained.began = []
    again = tfkit("study", "second.yaml", folder=copy)
    assert again.exit_code == 0 and Trained.began == [] and results(copy) == data
    assert json.loads(tfkit("compare", "studies/second", "--json", folder=copy).stdout) == data


def test_a_moved_pair_of_folders_still_belongs_together(copy: Path, tmp_path: Path) -> None:
    study(copy, "second", compare=["wide"])
    assert tfkit("study", "second.yaml", folder=copy).exit_code == 0
    data = results(copy)
    moved = copy.rename(tmp_path / "moved")
    found = json.loads(tfkit("compare", "studies/second", "--json", folder=moved).stdout)
    assert found["comparisons"] == data["comparisons"]


def test_edited_runs_are_named_and_trained_again(copy: Path) -> None:
    file = copy / "studies" / "first" / "runs" / "wide-s0" / "run.json"
    history = json.loads(file.read_text())
    history["best"]["loss"] -= 0.5
    file.write_text(json.dumps(history))
    (copy / "studies" / "first" / "runs" / "wide-s1" / "SHA256SUMS").unlink()
    study(copy, "second", compare=["wide"])
    printed = tfkit("study", "second.yaml", folder=copy)
    assert printed.exit_code == 0, printed.output
    assert sorted(Trained.began) == ["wide-s0", "wide-s1"]
    text = " ".join(printed.stdout.split())
    assert "first/runs/wide-s0/run.json: has changed since it was written" in text
    assert "so it is not reused for wide-s0" in text
    assert "first/runs/wide-s1: has no SHA256SUMS, so it is not reused for wide-s1" in text


def test_a_taken_run_that_changes_is_no_evidence_and_then_trained(copy: Path) -> None:
    study(copy, "second", compare=["wide"])
    assert tfkit("study", "second.yaml", folder=copy).exit_code == 0
    taken = copy / "studies" / "first" / "runs" / "wide-s0"
    history = json.loads((taken / "run.json").read_text())
    (taken / "run.json").write_text(json.dumps({**history, "best": {"loss": 0.1}}))
    found = json.loads(tfkit("compare", "studies/second", "--json", folder=copy).stdout)
    assert "has changed since the study took it" in found["altered"]["wide-s0"]
    shutil.rmtree(copy / "studies" / "first" / "runs" / "baseline-s1")
    Trained.began = []
    again = tfkit("study", "second.yaml", folder=copy)
    assert again.exit_code == 0, again.output
    assert sorted(Trained.began) == ["baseline-s1", "wide-s0"]
    assert scores(copy, "second")["wide", 0] == history["best"]["loss"]
    assert sorted(results(copy)["reused"]) == ["baseline-s0", "wide-s1"]


@pytest.mark.parametrize(
    "change",
    ["data", "code", "recipe", "steps", "reuse", "machine"],
)
def test_other_runs_are_not_taken(copy: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    keys: dict[str, Any] = {"compare": ["wide"], "seeds": 1}
    more: dict[str, Any] = {}
    if change == "code":
        monkeypatch.setattr(environment, "_code", lambda: "another")
    elif change == "recipe":
        more = {"train": {"schedule": {"type": "constant", "lr": 0.04}}}
    elif change == "steps":
        more = {"train": {"steps": 3}}
    elif change == "reuse":
        keys["reuse"] = False
    elif change == "machine":
        keys["measure"] = ["valid.loss", "seconds"]
    study(copy, "second", more, **keys)
    if change == "data":
        (copy / "train.txt").write_text((copy / "train.txt").read_text() + "one six\n")
    assert tfkit("study", "second.yaml", folder=copy).exit_code == 0
    assert sorted(Trained.began) == ["baseline-s0", "wide-s0"]
    assert results(copy)["reused"] == {}


def test_taken_runs_keep_their_files(copy: Path) -> None:
    study(copy, "second", compare=["wide"], keep="scores")
    assert tfkit("study", "second.yaml", folder=copy).exit_code == 0
    assert Trained.began == []
    assert len(list((copy / "studies" / "first" / "runs").glob("*/model.safetensors"))) == 4


def test_commands_are_printed_for_new_runs_alone(copy: Path) -> None:
    study(copy, "second", compare=["wide", "norm"])
    lines = tfkit("study", "second.yaml", "--commands", folder=copy).stdout.splitlines()
    assert [line.split("--out ")[1].split()[0] for line in lines] == ["studies/second/runs/norm=rms_norm-s0"]


@pytest.mark.parametrize(("keep", "begun"), [("scores", []), ("weights", ["baseline-s0"]), ("all", ["baseline-s0"])])
def test_runs_without_the_files_to_keep_are_trained_again(copy: Path, keep: Keep, begun: list[str]) -> None:
    reduce(RunFolder(copy / "studies" / "first" / "runs" / "baseline-s0"), "scores")
    reduce(RunFolder(copy / "studies" / "first" / "runs" / "wide-s0"), keep)
    study(copy, "second", compare=["wide"], seeds=1, keep=keep)
    assert tfkit("study", "second.yaml", folder=copy).exit_code == 0
    assert sorted(Trained.began) == begun
