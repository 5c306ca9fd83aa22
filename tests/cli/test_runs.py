"""`tfkit runs` lists runs with what they are and what they reached, filtered and sorted."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from tests.training.small import small, trained
from tfkit.run import evaluate
from tfkit.storage.files import FolderLock, held_by

from ..sampling import looped
from .typed import typed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of other norms and seeds, one of them in a folder of its own."""
    folder = tmp_path_factory.mktemp("made")
    for place, seed, norm in (("a", 3, "layer_norm"), ("b", 2, "rms_norm"), ("deep/c", 1, "rms_norm")):
        changed = {"train.seed": seed, "model.layer.norm": norm, "train.metrics": []}
        trained(small(folder, changed), folder / "runs" / place)
    evaluate(folder / "runs" / "a", "valid")
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def runs(*arguments: object) -> Result:
    return typed("runs", *arguments, columns=100)


def names(*arguments: object) -> list[str]:
    found = runs("--json", *arguments)
    assert found.exit_code == 0, found.stderr
    return [row["run"] for row in json.loads(found.stdout)]


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(runs("--csv").stdout)))


def test_the_table_has_every_run(folder: Path) -> None:
    lines = runs().stdout.splitlines()
    assert lines[0].split() == ["run", "status", "step", "valid.loss", "tokens_per_second", "time"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [f"runs/{name}", "finished", "3"] for name in ("a", "b", "deep/c")
    ]


@looped(
    ("arguments", "expected"),
    [
        (["--where", "norm=rms_norm"], ["b", "deep/c"]),
        (["--where", "norm!=rms_norm"], ["a"]),
        (["--where", "seed>=2"], ["a", "b"]),
        (["--where", "seed>=2", "--where", "layer.norm = rms_norm"], ["b"]),
        (["--where", "d_model<4"], []),
        (["--where", "seed=true"], []),
        (["--sort", "seed"], ["deep/c", "b", "a"]),
        (["--sort", "seed", "--reverse"], ["a", "b", "deep/c"]),
        (["--sort", "valid.perplexity"], ["a", "b", "deep/c"]),
        (["runs/deep"], ["deep/c"]),
        (["runs/b", "runs/a", "runs/b"], ["b", "a"]),
    ],
)
def test_filters_and_order(arguments: list[str], expected: list[str], folder: Path) -> None:
    assert names(*arguments) == [f"runs/{name}" for name in expected]


def test_csv_and_json_have_exact_figures_and_no_formula(folder: Path) -> None:
    table = rows()
    data = json.loads(runs("--json").stdout)
    progress = json.loads((folder / "runs" / "a" / "run.json").read_text())
    assert float(table[0]["valid.loss"]) == data[0]["valid.loss"] == progress["best"]["loss"]
    assert data[0]["set"] == '{"train.seed": 3, "model.layer.norm": "layer_norm", "train.metrics": []}'
    assert data[0]["valid.perplexity"] > 1
    assert table[1]["valid.perplexity"] == ""

    history = folder / "runs" / "a" / "run.json"
    before = history.read_text()
    history.write_text(json.dumps({**json.loads(before), "recipe": "=1+1\x1b", "variants": ["@x"]}))
    row = rows()[0]
    history.write_text(before)
    assert (row["recipe"], row["variants"], row["seed"]) == ("'=1+1\\x1b", "'@x", "3")


def test_columns_of_the_recipe(folder: Path) -> None:
    lines = runs("--columns", "run,norm,d_model,layer.norm.eps").stdout.splitlines()
    assert lines[1].split() == ["runs/a", "layer_norm", "8", "1e-05"]


def test_a_damaged_run_is_listed_with_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "b" / "run.json").write_text("[")
    (tmp_path / "runs" / "a" / "resolved.yaml").write_bytes(b"\xff: [")
    printed = " ".join(runs(tmp_path / "runs").stdout.split())
    assert "damaged" in printed and "run.json: cannot be read" in printed
    found = names(tmp_path / "runs", "--where", "norm=rms_norm")
    assert found == [str(tmp_path / "runs" / name) for name in ("b", "deep/c")]


def test_a_run_that_is_trained_now_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "runs" / "a", tmp_path / "a")
    lock = FolderLock.take(tmp_path / "a", "trained")
    try:
        assert held_by(tmp_path / "a") is not None
        assert "training" in runs(str(tmp_path)).stdout
    finally:
        lock.release()
    (tmp_path / "a" / ".lock").write_text("999999999 " + "elsewhere trained\n")
    assert "elsewhere" in (held_by(tmp_path / "a") or "")
    assert "finished" not in runs(str(tmp_path)).stdout


def test_what_cannot_be_listed_is_told(folder: Path, tmp_path: Path) -> None:
    cases = [
        (["nowhere"], "nowhere: no such folder"),
        ([tmp_path], f"no runs in {tmp_path}"),
        (["--where", "nrm=rms_norm"], "no run has 'nrm'. Did you mean 'norm'?"),
        (["--where", "norm"], "--where 'norm': write a key"),
        (["--where", "step>x"], "--where 'step>x': > compares with a number, not with 'x'"),
        (["--sort", "valid.los"], "--sort valid.los: no run has 'valid.los'. Did you mean 'valid.loss'?"),
        (["--columns", "run,tokns"], "--columns tokns: no run has 'tokns'. Did you mean 'tokens'?"),
        (["--csv", "--json"], "use one of them"),
    ]
    for arguments, message in cases:
        found = runs(*arguments)
        assert found.exit_code == 2 and message in " ".join(found.output.split()), message
