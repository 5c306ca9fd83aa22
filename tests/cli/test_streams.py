"""Standard streams that are closed, full, without a reader, or a terminal that closes; real processes, pipes, ptys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tfkit
from tests.studies.small import replaced, study
from tfkit.cli.terminal import OUTPUT, echo, outlasting
from tfkit.core.figures import Console
from tfkit.training.processes import Interrupts
from tfkit.training.progress import Reporter

from ..sampling import each
from .forked import Setup, command, environment, start, wait

ENDLESS = "train.steps=100_000_000"
TEXTS = b"one\ntwo\n"
SECONDS = 120  # until a test gives up waiting; nothing depends on how long anything takes


@pytest.fixture
def recipe(place: Path) -> Path:
    return place / "pair.yaml"


@pytest.fixture
def run(pair: Path) -> Path:
    return pair


def lines(recipe: Path, run: Path) -> list[tuple[str | Path, ...]]:
    """A line for each command that prints."""
    return [
        ("check", recipe),
        ("evaluate", run),
        ("generate", run, "one"),
        ("generate", run, "--stream", "one"),
        ("explain", recipe, "model.d_model"),
        ("show", "--json", recipe),
        ("show", recipe),
        ("diff", recipe, "--set", "model.d_model=16"),
        ("parts",),
        ("parts", "--matrix"),
        ("parts", "norm", "layer_norm"),
        ("parts", "schedule", "constant", "--check"),
        ("schema",),
        ("new", "mine", "--force"),
        ("show", "--help"),
        ("--version",),
        ("evaluate", run, "--limit", "2", "--quantize", "int8"),
        ("compare", run, run.with_name("writer")),
        ("runs", run.parent),
        ("report", run, "--out", "page.html", "--force"),
        ("generate", run, "--jsonl"),
        ("embed", run, run.with_name("a.txt")),
        ("export", run, "exported", "--force"),
        ("study", "small.yaml", "--dry-run"),
        ("study", "small.yaml", "--commands"),
    ]


EVERY = pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])  # of these lines


def close_output() -> None:
    os.close(1)


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


def close_all() -> None:
    os.closerange(0, 3)


def lose_reader() -> None:
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(read)


LOSSES: dict[str, tuple[str | None, Setup | None, str]] = {
    "no reader": (None, lose_reader, "Broken pipe"),
    "closed": (None, close_output, "the stream is closed"),
    "full": ("/dev/full", None, "No space left on device"),
    "head": (None, read_a_line, "Broken pipe"),
}


# --- output that cannot be written


@EVERY
def test_output_that_cannot_be_written_is_told_in_a_line(
    every: int, recipe: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study(tmp_path)
    unwritten = "tfkit: the output cannot be written: "

    def check(*line: str | Path) -> None:
        whole = command(*line, folder=tmp_path, stdin=TEXTS)
        assert (whole.status, whole.err) == (0, "") and whole.out, whole
        read = command(*line, folder=tmp_path, stdin=TEXTS, setup=read_a_line)
        assert read.status in (0, 1) and not read.err, read
        full = command(*line, folder=tmp_path, stdin=TEXTS, out="/dev/full")
        assert (full.status, full.err) == (1, f"{unwritten}No space left on device\n"), full
        unread = command(*line, folder=tmp_path, stdin=TEXTS, setup=lose_reader)
        assert (unread.status, unread.err) == (1, ""), unread
        closed = command(*line, folder=tmp_path, stdin=TEXTS, setup=close_output)
        by_click = line[-1] in ("--help", "--version")  # which says nothing then
        expected = (0, "") if by_click else (1, f"{unwritten}the stream is closed\n")
        assert (closed.status, closed.err) == expected, closed

    each(lines(recipe, run)[2 % every :: every], check)


@pytest.mark.full
def test_training_goes_on_into_its_log_when_nobody_reads(recipe: Path, tmp_path: Path) -> None:
    lost = "the output cannot be written: {}; further output goes only to this log"
    for name, setup, out, told in (
        ("closed", close_output, None, ""),
        ("unread", lose_reader, None, lost.format("the reader has closed it")),
        ("all", close_all, None, ""),
        ("full", None, "/dev/full", lost.format("No space left on device")),
    ):
        ended = command("train", recipe, "--out", tmp_path / name, folder=tmp_path, setup=setup, out=out)
        assert ended.status == 0 and "Traceback" not in ended.err, ended
        log = (tmp_path / name / "train.log").read_text()
        assert "step 4 of 4" in log and "next: tfkit generate" in log and told in log
        assert tfkit.load_run(tmp_path / name).generate("one") is not None


def test_the_samples_of_a_run_may_lose_their_reader(tmp_path: Path) -> None:
    """They are a table, printed by rich, which ends a program whose reader has gone."""
    read, write = os.pipe()
    with open(write, "w") as stream, Reporter(True, stream) as reporter:
        reporter.open(tmp_path / "train.log")
        reporter.say("while somebody reads")
        os.close(read)
        from tfkit.training.scoring import SampleOutput, print_samples

        reporter.draw(lambda there: print_samples([SampleOutput("a", "b", "c")], there))
        reporter.say("after that")
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # for the buffer, when it is closed
    assert "after that" in (tmp_path / "train.log").read_text()


# --- work that goes on though its output is lost


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a study whose trainings happen in the process of the command."""
    replaced(monkeypatch)
    monkeypatch.chdir(tmp_path)
    study(tmp_path)
    return tmp_path


MADE = Path("studies/small")


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_work_that_is_on_disk_goes_on_and_says_so_once(loss: str, folder: Path) -> None:
    out, setup, why = LOSSES[loss]
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


# --- closed input, other encodings, odd widths


def test_closed_input_is_told(run: Path, tmp_path: Path) -> None:
    for name, *more in (["generate"], ["predict"], ["embed", "-"]):
        ended = command(name, run, *more, folder=tmp_path, setup=lambda: os.close(0))
        assert ended.status == 2 and ended.err.startswith("tfkit: standard input is closed; "), ended


def test_closed_streams_leave_their_numbers_to_nothing_else(recipe: Path, tmp_path: Path) -> None:
    """Else a library's message for standard error could land in a file of the run that got its number."""
    from tfkit.cli.terminal import open_streams

    def opened() -> None:
        close_all()
        open_streams()
        with open(tmp_path / "first", "wb") as file:
            os._exit(0 if file.fileno() > 2 else 1)

    child = start(out=1, err=2, setup=opened)
    assert wait(child) == 0


@EVERY
def test_text_that_the_terminal_cannot_show_is_spelled_out(
    every: int, recipe: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study(tmp_path)

    def check(*line: str | Path) -> None:
        ended = command(*line, folder=tmp_path, stdin=TEXTS)
        assert (ended.status, ended.err) == (0, ""), ended
        assert ended.out.isascii() and ended.out

    with environment({"PYTHONIOENCODING": "ascii", "COLUMNS": "0"}):
        each(lines(recipe, run)[2 % every :: every], check)
        ended = command("check", "größe.yaml", folder=tmp_path)
    assert ended.status == 2 and ended.err.startswith("gr\\xf6\\xdfe.yaml: "), ended


@pytest.mark.slow
@pytest.mark.parametrize("width", ["1", "many", "100000"])
def test_any_width_of_a_terminal_will_do(
    width: str, recipe: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study(tmp_path)
    with environment({"COLUMNS": width}):
        for line in lines(recipe, run):
            ended = command(*line, folder=tmp_path, stdin=TEXTS)
            assert (ended.status, ended.err) == (0, "") and ended.out.strip(), ended


@pytest.mark.slow
def test_training_prints_in_ascii_where_that_is_asked_for(recipe: Path, tmp_path: Path) -> None:
    with environment({"PYTHONIOENCODING": "ascii", "COLUMNS": "0"}):
        ended = command("train", recipe, "--out", tmp_path / "run", folder=tmp_path)
    assert (ended.status, ended.err) == (0, "") and ended.out.isascii() and "reference" in ended.out, ended


# --- signals


def until(holds: Callable[[], object], child: int) -> None:
    """Wait for something; a child that ended before is told."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "it ended by itself"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def after_the_first_steps(run: Path, then: Callable[[], None], child: int) -> None:
    """Do something once the run has trained."""
    until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size, child)
    then()


def on_terminal(slave: int) -> None:
    """Make a pseudo-terminal the terminal of a new session, as a window does."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def saved(run: Path) -> int:
    """The step of the last checkpoint."""
    return max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))


def drain(master: int) -> None:
    """Read what there is, so that the child does not wait for a reader."""
    os.set_blocking(master, False)
    with contextlib.suppress(BlockingIOError, OSError):
        while os.read(master, 65536):
            pass


def test_a_closed_terminal_saves_what_was_trained(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    master, slave = pty.openpty()
    child = start(
        "train", recipe, "--out", run, "--set", ENDLESS, out=slave, err=slave, stdin=slave,
        setup=lambda: on_terminal(slave) or os.close(master),  # type: ignore[func-returns-value]
    )  # fmt: skip
    os.close(slave)
    drain(master)
    after_the_first_steps(run, lambda: os.close(master), child)
    assert wait(child) == 130
    assert saved(run) > 0 and "stopped at step" in (run / "train.log").read_text()


@pytest.mark.slow
def test_a_terminal_that_closes_over_nohup_leaves_the_run_alone(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    master, slave = pty.openpty()

    def under_nohup() -> None:
        on_terminal(slave)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.close(master)

    child = start("train", recipe, "--out", run, "--set", ENDLESS, out=slave, err=slave, setup=under_nohup)
    os.close(slave)
    drain(master)
    after_the_first_steps(run, lambda: os.close(master), child)
    log, told = run / "train.log", "Input/output error; further output goes only to this log"
    until(lambda: "valid loss" in log.read_text().partition(told)[2], child)
    os.kill(child, signal.SIGTERM)
    assert wait(child) == 130 and saved(run) > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_saves_and_the_same_line_goes_on(number: signal.Signals, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open(os.devnull, "wb") as null:
        child = start("train", recipe, "--out", run, "--set", ENDLESS, out=null.fileno(), err=null.fileno())
        after_the_first_steps(run, lambda: os.kill(child, number), child)
        assert wait(child) == 130
    done = saved(run)
    assert done > 0
    ended = command("train", recipe, "--out", run, "--resume", "--set", f"train.steps={done + 1}", folder=tmp_path)
    assert (ended.status, ended.err) == (0, "") and f"from step {done:,}" in ended.out, ended


def sent(*numbers: signal.Signals) -> Interrupts:
    """What training knows after some signals."""
    with Interrupts() as interrupts:
        for number in numbers:
            os.kill(os.getpid(), number)
    return interrupts


def test_a_hangup_is_heeded_once_and_with_another_signal() -> None:
    assert not sent().asked
    assert sent(signal.SIGHUP, signal.SIGHUP).asked  # a shell passes it on after the terminal sent it
    assert sent(signal.SIGTERM, signal.SIGHUP).asked and sent(signal.SIGHUP, signal.SIGTERM).asked
    with pytest.raises(KeyboardInterrupt):
        sent(signal.SIGTERM, signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    for number in (signal.SIGHUP, signal.SIGINT):
        before = signal.signal(number, signal.SIG_IGN)
        try:
            assert not sent(number).asked
            assert signal.getsignal(number) is signal.SIG_IGN
        finally:
            signal.signal(number, before)
