"""What training does not need cannot stop a resume: it is set aside, told, and begun anew."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.training.small import outcome, small, trained
from tfkit.core.errors import RunError
from tfkit.run import Run, load_run
from tfkit.storage.checksums import forget
from tfkit.storage.files import read_yaml
from tfkit.training.folder import RunFolder
from tfkit.training.mend import mend
from tfkit.training.metrics_log import MetricsLog, good_lines

TWO = {"steps": 2, "metrics": []}
ODD = [b"", b"\xff\xfe\x00", b"[" * 1100, b"[1, 2]", b'"text"', b"{", b"- a: [", b"!!python/object:os.system {}\n"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("done")
    return trained(small(folder, **TWO), folder / "run")


@pytest.fixture
def run(done: Run, tmp_path: Path) -> Path:
    """A run that a test may damage, of the texts in the folder of `done`."""
    shutil.copytree(done.folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def longer(done: Run) -> Path:
    """The same with a step more."""
    shutil.copytree(done.folder, done.folder.with_name("longer"))
    return trained(small(done.folder.parent), done.folder.with_name("longer"), resume=True).folder


def resumed(done: Run, run: Path) -> str:
    """Train a step more; returns the log of that."""
    trained(small(done.folder.parent), run, resume=True)
    return (run / "train.log").read_text(errors="replace").rpartition("next:")[0].rpartition("next:")[2]


@pytest.mark.parametrize("name", ["resolved.yaml", "recipe.yaml", "evaluation.json", "metrics.jsonl", "train.log"])
@pytest.mark.parametrize("text", ODD, ids=["empty", "binary", "deep", "list", "text", "cut", "yaml", "tag"])
def test_damage_is_never_a_stop(run: Path, name: str, text: bytes) -> None:
    (run / name).write_bytes(text)
    told = list(mend(RunFolder(run)))
    aside = run / f"{name}.damaged"
    assert all(str(run / name) in line for line in told)
    if aside.exists():
        assert aside.read_bytes() == text and aside.name in told[0]
    if name == "metrics.jsonl":
        assert told[-1].endswith("lines of 2 of 2 steps are missing") or text[:1] not in (
            b"",
            b"{",
        )
        assert good_lines((run / name).read_bytes()) == ([], 0)
    else:
        assert aside.exists() and not (run / name).exists()


@pytest.mark.parametrize("name", ["resolved.yaml", "recipe.yaml", "metrics.jsonl", "train.log"])
def test_a_change_that_leaves_a_file_readable_is_told(run: Path, name: str) -> None:
    before = (run / name).read_bytes()
    (run / name).write_bytes(before.replace(b": ", b":  ", 1))
    assert [line.partition(f"{run / name}: has changed since it was written")[0] for line in mend(RunFolder(run))] == [
        ""
    ]
    assert (run / f"{name}.damaged").exists() == (name != "metrics.jsonl")  # good lines stay


def test_files_that_a_kill_left_unrecorded_are_believed(run: Path) -> None:
    forget(run, ["metrics.jsonl", "train.log"])
    with (run / "train.log").open("a") as file:
        file.write("half a li")
    assert list(mend(RunFolder(run))) == []


@pytest.mark.full
def test_a_resume_goes_on_and_tells(done: Run, run: Path, longer: Path) -> None:
    for name in ("resolved.yaml", "recipe.yaml", "evaluation.json", "train.log"):
        (run / name).write_bytes(b"\xff\x00")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"\xff\n" + lines[0] + b'{"step": "2"}\n[]\n' + lines[1] + b'{"step": 3, "l')
    log = resumed(done, run)
    assert (run / "metrics.jsonl.damaged").read_bytes().startswith(b"\xff\n{")
    assert "metrics.jsonl: 3 damaged lines removed; the original is metrics.jsonl.damaged" in log
    assert (
        "resolved.yaml: cannot be read: not UTF-8 at byte 0; moved to resolved.yaml.damaged; a new file is started"
        in log
    )
    assert outcome(run) == outcome(longer)
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


def test_a_second_time_takes_another_name(run: Path) -> None:
    for number in range(3):
        (run / "evaluation.json").write_text(str(number))
        assert len(list(mend(RunFolder(run)))) == 1
    assert [(run / f"evaluation.json.damaged{end}").read_text() for end in ("", "-2", "-3")] == ["0", "1", "2"]


def test_missing_lines_are_told(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[1])
    assert [line.partition(": ")[2] for line in mend(RunFolder(run))] == ["the lines of 1 of 2 steps are missing"]
    (run / "metrics.jsonl").unlink()
    assert len(list(mend(RunFolder(run)))) == 1


def test_a_missing_resolved_recipe_is_told(done: Run, run: Path, longer: Path) -> None:
    (run / "resolved.yaml").unlink()
    assert "resolved.yaml: is missing; the recipe cannot be compared" in resumed(done, run)
    assert outcome(run) == outcome(longer)


def test_a_line_that_was_cut_off_is_no_damage(run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    forget(run, ["metrics.jsonl"])
    (run / "metrics.jsonl").write_bytes(before + b'{"step": 3, "lo')
    assert list(mend(RunFolder(run))) == []
    MetricsLog(run / "metrics.jsonl", 2).close()
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be read")
@pytest.mark.parametrize("name", ["resolved.yaml", "recipe.yaml", "evaluation.json", "metrics.jsonl", "train.log"])
def test_what_cannot_be_read_is_set_aside(run: Path, name: str) -> None:
    (run / name).chmod(0)
    assert len(list(mend(RunFolder(run)))) == 1 and not (run / name).exists()


def test_what_cannot_be_set_aside_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "evaluation.json").write_text("{")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(RunError, match=r"evaluation\.json: cannot be renamed: Operation not permitted"):
        list(mend(RunFolder(run)))


def test_a_log_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"metrics\.jsonl: is a link"):
        MetricsLog(tmp_path / "metrics.jsonl")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.full
@pytest.mark.parametrize("text", ["a: " + "[" * 5000 + "]" * 5000, "a: [", "- 1", "a: 2026-99-99"])
def test_the_resolved_recipe_of_a_run_from_elsewhere_is_data(text: str, tmp_path: Path) -> None:
    (tmp_path / "resolved.yaml").write_text(text)
    with pytest.raises(RunError, match=r"resolved\.yaml: (cannot be read|not a mapping)"):
        read_yaml(tmp_path / "resolved.yaml")
    assert any("resolved.yaml: " in line for line in mend(RunFolder(tmp_path)))
