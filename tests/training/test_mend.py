"""Damaged files that training does not need: a resume moves them aside, names them and starts new ones."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.sampling import each
from tests.training.small import outcome, small, trained
from tfkit.core.errors import RunError
from tfkit.run import Run, load_run
from tfkit.runs.folder import RunFolder
from tfkit.runs.history import MetricsLog
from tfkit.runs.record import READERS, mend
from tfkit.storage.files import read_yaml

TWO = {"steps": 2, "metrics": []}
ODD = [b"\xff\xfe\x00", b"[" * 1100, b"[1, 2]", b'"text"', b"{\n", b"- a: [", b"!!python/object:os.system {}\n"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("done")
    run = trained(small(folder, **TWO), folder / "run")
    run.evaluate()
    return run


@pytest.fixture
def run(done: Run, tmp_path: Path) -> Path:
    """A run that a test may damage, of the texts in the folder of `done`."""
    shutil.copytree(done.folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def longer(done: Run) -> Path:
    """The same run with one more step."""
    shutil.copytree(done.folder, done.folder.with_name("longer"))
    return trained(small(done.folder.parent), done.folder.with_name("longer"), resume=True).folder


def resumed(done: Run, run: Path) -> str:
    """Train one more step, and return its log."""
    trained(small(done.folder.parent), run, resume=True)
    return (run / "train.log").read_text(errors="replace").rpartition("next:")[0].rpartition("next:")[2]


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_moved_aside(run: Path, name: str) -> None:
    whole, sums = (run / name).read_bytes(), (run / "SHA256SUMS").read_bytes()

    def moved(text: bytes) -> None:
        (run / "SHA256SUMS").write_bytes(sums)
        (run / name).write_bytes(text)
        first, *others = mend(RunFolder(run))
        assert first.startswith(f"{run / name}: ") and f"; moved to {name}.damaged; a new file is started" in first
        assert (run / f"{name}.damaged").read_bytes() == text and not (run / name).exists()
        (run / f"{name}.damaged").unlink()
        found = " ".join([*others, *mend(RunFolder(run))])
        assert ("the lines of 2 of 2 steps are missing" in found) == (
            name == "metrics.jsonl"
        ) and "; moved to" not in found

    each((*ODD, whole.replace(b": ", b":  ", 1)), moved)


def test_a_second_damage_takes_another_name(run: Path) -> None:
    for number in range(3):
        (run / "evaluation.json").write_text(str(number))
        assert len(list(mend(RunFolder(run)))) == 1
    assert [(run / f"evaluation.json.damaged{end}").read_text() for end in ("", "-2", "-3")] == ["0", "1", "2"]


def test_files_of_a_killed_run_are_trusted(run: Path) -> None:
    (run / "SHA256SUMS").unlink()
    before = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(before + b'{"step": 3, "lo')  # a truncated line is no damage
    with (run / "train.log").open("a") as file:
        file.write("half a li")
    assert list(mend(RunFolder(run))) == []
    MetricsLog(run / "metrics.jsonl", 2).close()
    assert (run / "metrics.jsonl").read_bytes() == before
    (run / "metrics.jsonl").write_bytes(before.splitlines(keepends=True)[1])
    assert [line.partition(": ")[2] for line in mend(RunFolder(run))] == ["the lines of 1 of 2 steps are missing"]


@pytest.mark.full
def test_a_resume_continues_and_reports(done: Run, run: Path, longer: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"\xff\n" + (run / "metrics.jsonl").read_bytes() + b'{"step": "2"}\n[]\n')
    for name in ("resolved.yaml", "recipe.yaml", "evaluation.json", "train.log"):
        (run / name).write_bytes(b"\xff\x00")
    log = resumed(done, run)
    assert (run / "metrics.jsonl.damaged").read_bytes().startswith(b"\xff\n{")
    assert "metrics.jsonl: 3 damaged lines; moved to metrics.jsonl.damaged; a new file is started" in log
    assert "resolved.yaml: cannot be read: not UTF-8 at byte 0; moved to resolved.yaml.damaged; a new file" in log
    expected = outcome(longer)
    assert outcome(run) == expected | {"metrics": expected["metrics"][2:]}
    for name in ("resolved.yaml", "recipe.yaml"):
        assert (run / name).read_bytes() == (longer / name).read_bytes()
    assert json.loads((run / "evaluation.json").read_text()).keys() == {"valid"}


@pytest.mark.full
@pytest.mark.parametrize("name", ["resolved.yaml", "recipe.yaml", "metrics.jsonl", "train.log"])
def test_a_finished_run_is_mended_too(done: Run, run: Path, name: str) -> None:
    before = {file: (run / file).read_bytes() for file in (name, "model.safetensors")}
    (run / name).write_bytes(b"\xff\n")
    for _ in range(2):
        trained(small(done.folder.parent, **TWO), run, resume=True)
        assert list(mend(RunFolder(run))) == [] or name == "metrics.jsonl"  # its lines are lost
    assert load_run(run).evaluate() and (run / f"{name}.damaged").read_bytes() == b"\xff\n"
    assert (run / "model.safetensors").read_bytes() == before["model.safetensors"]
    assert name.endswith(("log", "jsonl")) or (run / name).read_bytes() == before[name]
    assert not (run / f"{name}.damaged-2").exists()


def test_a_missing_resolved_recipe_is_reported(done: Run, run: Path, longer: Path) -> None:
    (run / "resolved.yaml").unlink()
    assert "resolved.yaml: is missing; the recipe cannot be compared" in resumed(done, run)
    assert outcome(run) == outcome(longer)


def test_errors_of_the_system_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "evaluation.json").write_text("{")
    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"evaluation\.json: cannot be renamed: denied"):
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(PermissionError(1, "denied")))
        list(mend(RunFolder(run)))
    (run / "linked.jsonl").symlink_to(run / "elsewhere")
    with pytest.raises(RunError, match=r"linked\.jsonl: is a link"):
        MetricsLog(run / "linked.jsonl")
    assert not (run / "elsewhere").exists()


@pytest.mark.full
@pytest.mark.parametrize("text", ["a: " + "[" * 5000 + "]" * 5000, "a: [", "- 1", "a: 2026-99-99"])
def test_the_resolved_recipe_of_a_stranger_is_data(text: str, tmp_path: Path) -> None:
    (tmp_path / "resolved.yaml").write_text(text)
    with pytest.raises(RunError, match=r"resolved\.yaml: (cannot be read|not a mapping)"):
        read_yaml(tmp_path / "resolved.yaml")
    assert any("resolved.yaml: " in line for line in mend(RunFolder(tmp_path)))
