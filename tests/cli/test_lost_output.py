"""Long commands whose output is lost: to a closed stream, a full disk, or a reader that leaves, such as `head -1`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.studies.small import replaced, study
from tfkit.cli.terminal import OUTPUT, echo, outlasting
from tfkit.core.console import Console

from .forked import Ended, Setup, command
from .test_streams import close_output, lose_reader

pytestmark = pytest.mark.full

LOSSES: dict[str, tuple[str | None, Setup | None, str]] = {
    "no reader": (None, lose_reader, "Broken pipe"),
    "closed": (None, close_output, "the stream is closed"),
    "full": ("/dev/full", None, "No space left on device"),
}


def read_a_line() -> None:
    """Pipe standard output into `head -1`."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(read, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.closerange(3, 100)
        os.execvp("head", ["head", "-1"])
    os.dup2(write, 1)
    os.close(read)
    os.close(write)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a study whose trainings happen in the process of the command."""
    replaced(monkeypatch)
    monkeypatch.chdir(tmp_path)
    study(tmp_path)
    return tmp_path


MADE = Path("studies/small")


@pytest.mark.slow
@pytest.mark.parametrize("loss", [*LOSSES, "head"])
def test_work_that_is_on_disk_goes_on_and_says_so_once(loss: str, folder: Path) -> None:
    out, setup, why = LOSSES.get(loss, (None, read_a_line, "Broken pipe"))
    ended = command("study", "small.yaml", folder=folder, out=out, setup=setup)
    said = f"the output cannot be written: {why}; further output goes to "
    assert (ended.status, ended.err) == (0, f"tfkit: {said}{MADE / OUTPUT}\n"), ended
    log = (MADE / OUTPUT).read_text()
    assert log.startswith(f"{said}this file only\n") and f"\nthe page: {MADE / 'report.html'}\n" in log, log
    assert (MADE / "report.html").is_file()


@pytest.mark.slow
def test_a_failure_of_the_work_keeps_its_status(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.studies.small.Trained.failing", "s1")
    ended = command("study", "small.yaml", folder=folder, setup=close_output)
    assert ended.status == 1 and "failed: the disk is full" in (folder / "studies/small" / OUTPUT).read_text(), ended


@pytest.mark.slow
def test_output_that_is_read_makes_no_log(folder: Path) -> None:
    ended = command("study", "small.yaml", folder=folder)
    assert (ended.status, ended.err) == (0, "") and "the page: " in ended.out
    assert not (folder / "studies/small" / OUTPUT).exists()


def test_what_follows_a_loss_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    with open(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with outlasting(tmp_path / OUTPUT):
            echo("read")
            assert os.read(read, 100) == b"read\n"
            os.close(read)
            echo("lost")
            Console().print("a table")
        assert sys.stdout is stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # for the buffer, when it is closed
    said = "the output cannot be written: Broken pipe; further output goes to "
    assert (tmp_path / OUTPUT).read_text() == f"{said}this file only\nlost\na table\n"
    assert capsys.readouterr().err == f"tfkit: {said}{tmp_path / OUTPUT}\n"


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with outlasting(tmp_path / "missing" / OUTPUT):
        echo("one")
        echo("two")
    assert sys.stdout is None


# --- commands whose product is the output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Path:
    """A folder with two runs that differ, and a file of texts."""
    folder = tmp_path_factory.mktemp("runs")
    for name, width in (("a", 8), ("b", 16)):
        tfkit.train(place / "pair.yaml", out=folder / name, progress=False, overrides={"model.d_model": width})
    (folder / "texts.txt").write_text("one\ntwo\n")
    return folder


PRODUCTS = {
    "study --dry-run": "study small.yaml --dry-run",
    "study --commands": "study small.yaml --commands",
    "compare": "compare {runs}/a {runs}/b",
    "runs": "runs {runs}",
    "evaluate": "evaluate {runs}/a --limit 2",
    "evaluate --quantize": "evaluate {runs}/a --limit 2 --quantize int8",
    "generate": "generate {runs}/a",
    "generate --jsonl": "generate {runs}/a --jsonl",
    "embed": "embed {runs}/a {runs}/texts.txt",
    "export": "export {runs}/a exported --force",
}
SLOW = {"study --dry-run", "study --commands", "compare", "export"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PRODUCTS]
)
def test_a_command_whose_product_is_the_output_ends_at_once(name: str, folder: Path, runs: Path) -> None:
    line = PRODUCTS[name].format(runs=runs).split()

    def ended(**how: Any) -> Ended:
        return command(*line, folder=folder, stdin=b"one\ntwo\n", **how)

    whole = ended()
    assert (whole.status, whole.err) == (0, "") and whole.out, whole
    for loss, (out, setup, why) in LOSSES.items():
        found = ended(out=out, setup=setup)
        said = "" if loss == "no reader" else f"tfkit: the output cannot be written: {why}\n"
        assert (found.status, found.err) == (1, said), (loss, found)
    read = ended(setup=read_a_line)
    assert read.status in (0, 1) and not read.err, read
