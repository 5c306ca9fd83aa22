"""`tfkit study` trains what a recipe compares, goes on where it stopped, and reports; `tfkit compare` reports too."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import math
import os
import platform
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tfkit as api
from tests.studies.small import Trained, study, tfkit
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.storage.files import FolderLock
from tfkit.studies.arms import StudySource
from tfkit.studies.board import Board
from tfkit.studies.compare import study_report
from tfkit.studies.plan import PlannedRun, runs_of
from tfkit.studies.plan_file import keep_plan, read_plan
from tfkit.studies.planning import make_plan
from tfkit.studies.process import Timing, _timing
from tfkit.studies.report import _row
from tfkit.studies.results import ArmResult
from tfkit.studies.runner import RunClaim, Runner, Worker, is_trained
from tfkit.studies.statistics import Comparison

pytestmark = pytest.mark.full

KEYS: dict[str, Any] = {
    "about": "Which norm is better?",
    "compare": ["norm"],
    "measure": ["valid.loss", "tokens_per_second", "peak_memory", "parameters"],
    "claims": [{"paper": "Nobody 2026", "says": "norm=layer_norm > norm=rms_norm", "on": "valid.loss"}],
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder in which a small study was run, and what it printed."""
    folder = tmp_path_factory.mktemp("study")
    study(folder, **KEYS)
    return folder, tfkit("study", "small.yaml", "--jobs", 2, folder=folder)


def planned(folder: Path, **keys: Any) -> Runner:
    """The runner of a study that is planned in `out` and not trained."""
    folder.mkdir(exist_ok=True)
    source, out = StudySource(str(study(folder, **{"compare": ["wide"], "seeds": 1, **keys}))), folder / "out"
    return Runner(source, keep_plan(out, make_plan(source, out, timed=False)), out, jobs=2)


@pytest.fixture
def folder(done: tuple[Path, Result]) -> Path:
    return done[0] / "studies" / "small"


@pytest.mark.full
def test_it_says_what_it_does_and_what_came_of_it(done: tuple[Path, Result]) -> None:
    printed = done[1]
    assert printed.exit_code == 0, printed.output
    text = " ".join(printed.output.split())
    assert "4 runs of 2 variants; seeds 0, 1; about" in text
    assert "norm=layer_norm = baseline" in text
    assert "norm=rms_norm-s0: done, valid.loss" in text
    assert "(4 of 4 done, 0 running" in text
    assert "claim: norm=layer_norm > norm=rms_norm on valid.loss (Nobody 2026): " in text
    assert "the page: studies/small/report.html" in text


def test_runs_are_ordinary_ones(folder: Path) -> None:
    runs = sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir())
    assert len(runs) == 4
    for name in runs:
        history = json.loads((folder / "runs" / name / "run.json").read_text())
        assert name.endswith(f"-s{history['seed']}")
        assert history["peak_memory"] > 2**20
        assert not (folder / "runs" / f"{name}.claim").exists()
    found = tfkit("runs", folder, "--where", "norm=rms_norm", "--json", folder=folder)
    assert len(json.loads(found.stdout)) == 2


def test_the_tuned_value_is_the_best_on_the_first_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other seeds come when all values have been tried; an arm that always diverged keeps the first value."""
    rates = [0.05, 0.01, 0.1]
    plan = make_plan(
        StudySource(str(study(tmp_path, **KEYS, tune={"train.schedule.lr": rates}))), tmp_path / "out", timed=False
    )
    losses = {("baseline", 0.05): 2.0, ("baseline", 0.01): 1.0, ("baseline", 0.1): None}
    losses |= {("norm=rms_norm", rate): None for rate in rates}
    board = Board(plan, tmp_path / "out")

    def loss(run: PlannedRun) -> float | None:
        return losses[run.arm, run.tuned["train.schedule.lr"]]

    monkeypatch.setattr(Board, "state", lambda self, run: "done" if loss(run) is not None else "diverged")
    monkeypatch.setattr(Board, "scores", lambda self, run: {} if loss(run) is None else {"valid.loss": loss(run)})
    assert board.best() == {"baseline": {"train.schedule.lr": 0.01}, "norm=rms_norm": {"train.schedule.lr": 0.05}}
    names = list(dict.fromkeys(run.name for run in runs_of(plan, board.best())))
    assert len(names) == plan.most_runs == 2 * (3 + 1)
    assert names[-2:] == ["baseline-lr0.01-s1", "norm=rms_norm-lr0.05-s1"]
    monkeypatch.setattr(Board, "state", lambda self, run: "waiting" if run.arm == "baseline" else "diverged")
    assert list(board.best()) == ["norm=rms_norm"]


RATE = "train.schedule.lr"


def test_tuning_goes_on_until_the_best_is_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By halves or doubles, one at a time and at most four; runs of other seeds wait for that."""
    source = StudySource(str(study(tmp_path, **KEYS, tune={RATE: [0.01, 0.02, "..."]})))
    plan = make_plan(source, tmp_path / "out", timed=False)
    assert plan.tune == {RATE: [0.01, 0.02]} and len(plan.more[RATE]) == 8
    assert "2 tuned values and up to 4 more, tried on seed 0" in plan.summary(1)
    plan = keep_plan(tmp_path / "out", plan)
    done: set[float] = set()
    best = 0.0

    def loss(run: PlannedRun) -> float | None:
        rate = run.tuned[RATE]
        return None if run.arm != "baseline" and rate > best else abs(math.log2(rate / best))

    def state(board: Board, run: PlannedRun) -> str:
        return "waiting" if run.tuned[RATE] not in done else "done" if loss(run) is not None else "diverged"

    monkeypatch.setattr(Board, "state", state)
    monkeypatch.setattr(Board, "scores", lambda self, run: {} if loss(run) is None else {"valid.loss": loss(run)})
    cases = (
        (0.014, [0.01, 0.02, 0.005], ""),
        (0.04, [0.01, 0.02, 0.04, 0.08], ""),
        (0.0024, [0.01, 0.02, 0.005, 0.0025, 0.00125], ""),
        (9.0, [0.01, 0.02, 0.04, 0.08, 0.16, 0.32], f"{RATE}=0.32"),
    )
    for best, tried, edge in cases:
        done = {0.01}
        assert [run.tuned[RATE] for run in Board(plan, tmp_path / "out").tuning(plan.arms[0])] == [0.01, 0.02]
        done = {0.01, 0.02, *(0.01 * 2.0**by for by in range(-8, 9))}
        board = Board(plan, tmp_path / "out")
        assert [run.tuned[RATE] for run in board.tuning(plan.arms[0])] == pytest.approx(tried), best
        assert len(board.runs()) == len({run.name for run in board.runs()})
        results = study_report(plan, tmp_path / "out").results
        assert results.arms[0].edge == edge and results.arms[0].tried[RATE] == pytest.approx(tried)
        assert all(one.mark == ("best at the edge" if edge else "") for one in results.comparisons if one.p is not None)
    best = 0.0024  # the other variant diverges at all greater rates
    assert [run.tuned[RATE] for run in board.tuning(plan.arms[2])] == [0.01, 0.02, 0.005, 0.0025, 0.00125, 0.000625]


def test_values_beyond_the_grid_are_those_that_the_recipe_takes(tmp_path: Path) -> None:
    for key, values, more in (
        ("train.schedule.lr", [0.5, "..."], [1.0, 2.0, 4.0, 8.0, 0.25, 0.125, 0.0625, 0.03125]),
        ("model.layer.dropout", [0.2, 0.4, "..."], [0.8, 0.1, 0.05, 0.025, 0.0125]),
        ("data.batch.size", [6, 12, "..."], [24, 48, 96, 192, 3]),
    ):
        plan = make_plan(StudySource(str(study(tmp_path, tune={key: values}))), tmp_path / "out", timed=False)
        assert list(plan.more[key]) == pytest.approx(more)
    for wrong in (["..."], ["...", 0.1], [0.0, "..."], ["a", "..."], [True, "..."]):
        with pytest.raises(RecipeError, match=r"`\.\.\.` must be the last value, after numbers above 0") as found:
            StudySource(str(study(tmp_path, tune={"train.schedule.lr": wrong}))).recipe()
        assert all(fault.line for fault in found.value.faults)


def test_a_page_says_what_was_tuned_and_how_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune = {"train.schedule.lr": [0.05, 0.01, 0.1]}
    plan = make_plan(StudySource(str(study(tmp_path, **KEYS, tune=tune))), tmp_path / "out", timed=False)
    best = {"baseline": {"train.schedule.lr": 0.05}, "norm=rms_norm": {"train.schedule.lr": 0.1}}
    monkeypatch.setattr(Board, "best", lambda self: best)
    monkeypatch.setattr(Board, "state", lambda self, run: "done")
    monkeypatch.setattr(Board, "scores", lambda self, run: {"valid.loss": 1.0})
    report = study_report(keep_plan(tmp_path / "out", plan), tmp_path / "out")
    assert report.results.at_the_edge == {"norm=rms_norm": "train.schedule.lr=0.1"}
    text = report.markdown()
    assert "Tuned for each variant: train.schedule.lr (0.05, 0.01, 0.1), by the best valid.loss of seed 0." in text
    assert "norm=rms_norm" in text[text.index("Best at the edge of the values tried") :]
    monkeypatch.setattr(Board, "state", lambda self, run: "diverged")
    monkeypatch.setattr(Board, "scores", lambda self, run: {})
    assert study_report(plan, tmp_path / "out").results.at_the_edge == {}, "no value of a variant that always diverged"


def test_the_data_has_every_figure_with_its_n(folder: Path) -> None:
    data = json.loads((folder / "results.json").read_text())
    assert data["format"] == 1
    assert data["about"] == "Which norm is better?"
    assert [arm["name"] for arm in data["arms"]] == ["baseline", "norm=layer_norm", "norm=rms_norm"]
    assert data["arms"][1]["same_as"] == "baseline"
    assert all(one["n"] == 2 for one in data["comparisons"])
    assert {one["measure"] for one in data["comparisons"]} == {"valid.loss", "tokens_per_second", "peak_memory"}
    tested = [one for one in data["comparisons"] if one["p"] is not None]  # the claim is one of them
    assert data["tested"] == len(tested) >= 1
    (claim,) = data["claims"]
    assert claim["verdict"] in ("held", "not held", "open")
    by_hand = [
        ours["scores"]["valid.loss"] - theirs["scores"]["valid.loss"]
        for ours, theirs in zip(data["arms"][2]["runs"], data["arms"][0]["runs"], strict=True)
    ]
    assert data["comparisons"][0]["mean"] == pytest.approx(sum(by_hand) / 2)
    assert claim["comparison"]["mean"] == -data["comparisons"][0]["mean"]  # of the variant that it names first
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    assert [(row["variant"], row["seed"]) for row in rows if row["measure"] == "valid.loss"] == [
        (name, seed) for name in ("baseline", "norm=rms_norm") for seed in ("0", "1")
    ]
    assert float(rows[0]["value"]) == data["arms"][0]["runs"][0]["scores"]["valid.loss"]


def test_the_page_is_one_file_with_pictures(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert text.count("<figure") == 2 and text.count('class="forest"') == 3  # measures with a table
    assert not re.search(r'\b(src|href|data)="[^#"]', text), "loads nothing"
    assert text.count("<script") == 1
    assert "Better means lower valid.loss or higher tokens_per_second or lower peak_memory beyond the noise" in text
    for words in ("Noise floor", "Which norm is better?", "Nobody 2026", "Holm", "layer.norm: layer_norm", "compare:"):
        assert words in text
    markdown = (folder / "report.md").read_text()
    for words in ("## Noise floor", "## Claims", "## valid.loss", "| norm=rms_norm | 2 |", "Nothing was tuned"):
        assert words in markdown
    assert "Best at the edge" not in markdown


def test_compare_gives_the_same_of_the_study_s_folder(folder: Path, tmp_path: Path) -> None:
    found = tfkit("compare", folder, "--json", "--out", tmp_path / "page", folder=folder)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == json.loads((folder / "results.json").read_text())
    assert (tmp_path / "page" / "report.html").read_text() == (folder / "report.html").read_text()


def test_json_is_what_the_folder_has(done: tuple[Path, Result], folder: Path) -> None:
    found = tfkit("study", "small.yaml", "--json", folder=done[0])
    assert json.loads(found.stdout) == json.loads((folder / "results.json").read_text())
    refused = tfkit("study", "small.yaml", "--commands", "--dry-run", folder=done[0])
    assert refused.exit_code == 2 and "cannot be combined" in " ".join(refused.output.split())


def test_the_exit_status_says_that_a_claim_did_not_hold(
    done: tuple[Path, Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for verdict, status in (("held", 0), ("open", 0), ("not held", 1)):
        monkeypatch.setattr("tfkit.studies.results.claim_verdict", lambda one, rising, verdict=verdict: verdict)
        for words in (("study", "small.yaml"), ("compare", folder)):
            assert tfkit(*words, folder=done[0]).exit_code == status


def test_a_p_from_the_far_tail_is_not_printed() -> None:
    for p, shown in ((2.1e-38, "< 0.0001"), (0.0001, "0.0001"), (0.03141, "0.031")):
        one = Comparison("a", "b", "valid.loss", 3, 3, mean=1.0, p=p, p_holm=p)
        assert _row(ArmResult("a", ()), "valid.loss", one)["p"] == shown


def test_a_study_from_python_is_a_data_frame(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason='pip install -e ".[pandas]"')
    found = api.study(folder)
    data = json.loads((folder / "results.json").read_text())
    row = found.table.loc["valid.loss", "norm=rms_norm"]
    (one,) = [one for one in data["comparisons"] if one["measure"] == "valid.loss"]
    assert [row[name] for name in ("difference", "low", "high", "p")] == [
        one[name] for name in ("mean", "low", "high", "p_holm")
    ]
    assert (row["n"], row["verdict"]) == (2, one["words"])
    assert found.table.loc["valid.loss", "baseline"]["verdict"] == "baseline"
    assert found.runs.loc["baseline", 1]["valid.loss"] == data["arms"][0]["runs"][1]["scores"]["valid.loss"]
    assert isinstance(found.table, pandas.DataFrame) and found.page.is_file()
    assert "norm=rms_norm" in found._repr_html_() and "4 of 4 runs are done" in repr(found)


def test_a_study_from_python_repeats_nothing(
    done: tuple[Path, Result], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    found = api.study(done[0] / "small.yaml", out=folder, progress=False)
    assert found.results.as_data() == json.loads((folder / "results.json").read_text())
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    assert capsys.readouterr().out == ""


def test_what_no_study_can_be_read_from_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs a name or path"):
        api.study({"study": {}})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="jobs must be a whole number from 1 to 1,024, got 0"):
        api.study("which.yaml", jobs=0)
    with pytest.raises(UsageError, match="is the folder of a study and is only read; omit out and sets"):
        api.study(folder, out="elsewhere")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="data frames need the package pandas: pip install"):
        _ = api.study(folder).table


def test_compare_groups_any_runs_by_what_they_say(folder: Path) -> None:
    runs = [folder / "runs" / f"{arm}-s{seed}" for arm in ("baseline", "norm=rms_norm") for seed in (0, 1)]
    found = tfkit("compare", *runs, "--json", "--measure", "valid.loss", folder=folder)
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert [len(arm["runs"]) for arm in data["arms"]] == [2, 2]
    known = json.loads((folder / "results.json").read_text())["comparisons"][0]
    assert data["comparisons"][0]["mean"] == known["mean"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "there"], "nowhere: contains no run"),
        (["runs/baseline-s0"], "is not the folder of a study"),
        ([".", "runs/baseline-s0"], ".: is a study; compare it alone"),
        ([".", "--measure", "valid.loss"], "the metrics of a study are set in its recipe"),
        (
            ["runs/baseline-s0", "runs/norm=rms_norm-s0", "--measure", "bleu"],
            "--measure bleu: no run has it",
        ),
    ],
)
def test_what_cannot_be_compared_is_told(arguments: list[str], message: str, folder: Path) -> None:
    found = tfkit("compare", *arguments, folder=folder)
    assert found.exit_code == 2
    assert message in " ".join(found.stderr.split())


@pytest.mark.full
def test_an_occupied_folder_is_refused_before_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = StudySource(str(study(tmp_path, **KEYS)))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    monkeypatch.setattr("tfkit.studies.planning.trial", lambda *_: pytest.fail("a trial was run"))
    for timed in (True, False):
        with pytest.raises(RunError, match="is not empty and contains no study"):
            make_plan(source, tmp_path / "taken", timed=timed)
    (tmp_path / "free").mkdir()
    plan = make_plan(source, tmp_path / "free", timed=False)
    (tmp_path / "free" / "file").write_text("mine, written meanwhile")
    with pytest.raises(RunError, match="is not empty and contains no study"):
        keep_plan(tmp_path / "free", plan)
    keep_plan(tmp_path / "own", plan)
    with pytest.raises(RunError, match="own: holds the study 'small'; choose another --out"):
        make_plan(StudySource(str(study(tmp_path, "other", **KEYS))), tmp_path / "own", timed=False)
    for more, message in {
        "model": "holds the runs of another study: its baseline or its budget differs",
        "variants": "holds runs of another 'wide' than this study's",
    }.items():
        planned(tmp_path / more)
        changed = {"d_model": 4} if more == "model" else {"wide": {"model.d_model": 24}}
        with pytest.raises(RunError, match=message):
            planned(tmp_path / more, more={more: changed})


@pytest.mark.slow
def test_a_baseline_that_diverges_is_timed(tmp_path: Path) -> None:
    """A tuned value may cure it; a recipe that cannot be trained is refused."""
    more = {"train": {"schedule": {"type": "constant", "lr": 1.0e17}, "steps": 4}}
    source = StudySource(str(study(tmp_path, more=more, tune={"train.schedule.lr": [1.0e17, 0.01]})))
    assert make_plan(source, tmp_path / "out").timing.seconds_per_step > 0


def test_more_seeds_go_on_in_the_same_folder(done: tuple[Path, Result], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(done[0], tmp_path / "copy"))
    study(folder, "small", **{**KEYS, "seeds": 3})
    found = tfkit("study", "small.yaml", "--commands", folder=folder)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("tfkit train small.yaml ") and "--set train.seed=2" in line for line in lines)


@pytest.mark.slow
def test_a_failed_run_is_told_and_stops_no_other(tmp_path: Path) -> None:
    """A variant whose corpus is not there when it is trained."""
    runner, out = planned(tmp_path, compare=["norm"]), tmp_path / "out"
    (out / "runs" / "norm=rms_norm-s0").mkdir(parents=True)
    (out / "runs" / "norm=rms_norm-s0" / "mine.txt").write_text("not a run")
    assert runner.run(lambda progress: None)
    assert [run.name for run in runner.progress.failed] == ["norm=rms_norm-s0"]
    assert "not empty and not a tfkit run" in next(iter(runner.progress.failed.values()))
    assert runner.board.state(PlannedRun("baseline", 0)) == "done"
    plan = read_plan(out)
    report = study_report(plan, out, {run.name: why for run, why in runner.progress.failed.items()})
    report.write(out)
    assert "not empty and not a tfkit run" in (out / "report.html").read_text()
    assert report.results.comparisons[0].words() == "failed in 1 of 1; untuned"
    assert study_report(plan, out).results.as_data() == report.results.as_data()


@pytest.mark.slow
def test_a_diverged_run_is_a_result(tmp_path: Path) -> None:
    more = {"variants": {"hot": {"train.schedule.lr": 1e17}}, "train": {"steps": 30, "metrics": []}}
    runner = planned(tmp_path, more=more, compare=["hot"], claims=[{"says": "baseline < hot"}])
    assert runner.run(lambda progress: None)
    assert not runner.progress.failed
    assert any("hot-s0: diverged at step" in event for event in runner.progress.events)
    results = study_report(read_plan(tmp_path / "out"), tmp_path / "out").results
    assert results.comparisons[0].words() == "diverged in 1 of 1, give it 4 seeds; untuned"
    assert results.claims[0].verdict == "open"  # one run of each is no evidence


@pytest.mark.slow
def test_a_run_that_max_time_stops_is_told_and_goes_on(tmp_path: Path) -> None:
    more = {"train": {"steps": 100_000, "max_time": "1 s", "metrics": []}}
    study(tmp_path, more=more, compare=["wide"], seeds=1)
    words = [sys.executable, "-m", "tfkit", "study", "small.yaml"]
    steps = []
    for _ in range(2):
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 1, ended.stderr
        found = re.search(r"baseline-s0: failed: stopped at step ([\d,]+) of 100,000 by train.max_time", ended.stdout)
        assert found, ended.stdout
        steps.append(int(found[1].replace(",", "")))
    assert steps[1] > steps[0]


def test_a_trial_of_a_single_step_has_a_time() -> None:
    assert _timing([{"tokens": 30, "tokens_per_second": 10.0}], 5.0) == Timing(3.0, 30.0, 2.0)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_line_goes_on(tmp_path: Path) -> None:
    more = {"train": {"steps": 600, "metrics": [], "evaluate_every": 600, "checkpoint_every": 600}}
    study(tmp_path, more=more, compare=["wide"], seeds=1)
    words = [sys.executable, "-m", "tfkit", "study", "small.yaml"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "studies" / "small" / "runs" / "baseline-s0" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size > 1000:
            break
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "stopped; to continue, repeat the command" in printed
    run = tmp_path / "studies" / "small" / "runs" / "baseline-s0"
    reached = json.loads((run / "run.json").read_text())["steps"]
    assert reached > 0
    assert not list((tmp_path / "studies" / "small" / "runs").glob("*.claim"))
    again = tfkit("study", "small.yaml", folder=tmp_path)
    assert again.exit_code == 0, again.output
    starts = json.loads((run / "run.json").read_text())["starts"]
    assert [start["step"] for start in starts] == [0, reached]


def test_what_is_in_the_place_of_a_run_is_not_counted(done: tuple[Path, Result], tmp_path: Path) -> None:
    shutil.copytree(done[0], tmp_path / "copy")
    folder = tmp_path / "copy" / "studies" / "small"
    shutil.rmtree(folder / "runs" / "baseline-s0")
    shutil.copytree(folder / "runs" / "norm=rms_norm-s0", folder / "runs" / "baseline-s0")
    found = tfkit("study", "small.yaml", folder=tmp_path / "copy")
    assert found.exit_code == 1
    assert "baseline-s0: holds another run than the study's; move it away" in " ".join(found.stdout.split())
    assert json.loads((folder / "results.json").read_text())["comparisons"][0]["n"] == 1


@pytest.mark.slow
def test_a_run_json_that_is_gone_or_damaged_is_written_again(done: tuple[Path, Result], tmp_path: Path) -> None:
    folder = done[0] / "studies" / "small"
    shutil.copytree(folder, tmp_path / "copy")
    (folder / "runs" / "baseline-s0" / "run.json").write_text("[")
    (folder / "runs" / "baseline-s1" / "evaluation.json").write_text('{"valid": {"x": {"a": NaN}}}')
    (folder / "runs" / "baseline-s1" / "metrics.jsonl").write_text('{"step": 1, "valid.loss": "x"}\n[1]\n')
    try:
        compared = tfkit("compare", folder, "--out", tmp_path / "page", folder=tmp_path)
        assert compared.exit_code == 0, compared.output
        again = tfkit("study", "small.yaml", folder=done[0])
        assert again.exit_code == 0, again.output
        assert json.loads((folder / "runs" / "baseline-s0" / "run.json").read_text())["finished"] == "steps"
    finally:
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copy", folder)


@pytest.mark.full
def test_a_training_that_outlived_its_study_is_waited_for(tmp_path: Path) -> None:
    runner, out = planned(tmp_path), tmp_path / "out"
    (out / "runs" / "baseline-s0").mkdir()
    (out / "logs").mkdir()
    lock = FolderLock.take(out / "runs" / "baseline-s0", "trained")
    try:
        assert runner._start()
        assert [worker.run.name for worker in runner.progress.workers] == ["wide-s0"]
        assert any(event.startswith("baseline-s0: is trained by process") for event in runner.progress.events)
    finally:
        lock.release()
        runner._interrupt()
        for worker in runner.progress.workers:
            worker.job.wait()
            worker.claim.release()


def test_a_recipe_that_changes_meanwhile_is_told(tmp_path: Path) -> None:
    runner = planned(tmp_path)
    study(tmp_path, more={"model": {"max_length": 12}}, compare=["wide"], seeds=1)
    assert runner.run(lambda progress: None)
    assert all("has changed since the study was planned" in why for why in runner.progress.failed.values())
    assert len(runner.progress.failed) == 2


@pytest.mark.parametrize("out", ["small.yaml", "small.yaml/x", "/proc/x/y", "n" * 300])
def test_a_folder_that_cannot_be_made_is_told(out: str, done: tuple[Path, Result]) -> None:
    for words in (("study", "small.yaml", "--commands"), ("compare", "studies/small")):
        found = tfkit(*words, "--out", out, folder=done[0])
        assert found.exit_code == 2, found.output
        assert "Traceback" not in found.output
        assert out[:100].split("/")[0] in found.stderr


@pytest.mark.slow
def test_two_processes_take_different_runs(tmp_path: Path) -> None:
    study(tmp_path, compare=["norm", "wide"], seeds=2)
    words = [sys.executable, "-m", "tfkit", "study", "small.yaml"]
    processes = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    lines = [line.split(": done")[0] for text in printed for line in text.splitlines() if ": done" in line]
    assert sorted(lines) == sorted(f"{arm}-s{seed}" for arm in ("baseline", "norm=rms_norm", "wide") for seed in (0, 1))
    for folder in (tmp_path / "studies" / "small" / "runs").iterdir():
        assert len(json.loads((folder / "run.json").read_text())["starts"]) == 1


def test_a_claim_is_held_by_one_and_taken_over_from_the_dead(tmp_path: Path) -> None:
    file, here = tmp_path / "run.claim", f"claimed on {platform.node()}\n"
    claim = RunClaim.take(file)
    assert claim is not None and RunClaim.take(file) is None
    assert file.read_text() == here
    claim.release()
    assert not file.exists()
    for left in ("", here):
        file.write_text(left)
        again = RunClaim.take(file)
        assert again is not None
        again.release()
    file.write_text("claimed on elsewhere\n")
    assert RunClaim.take(file) is None and "elsewhere" in file.read_text()
    os.utime(file, (time.time() - 1000, time.time() - 1000))
    old = RunClaim.take(file)
    assert old is not None
    old.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_shows_that_its_process_is_alive(tmp_path: Path) -> None:
    claim = RunClaim.take(tmp_path / "run.claim")
    assert claim is not None
    os.utime(claim.path, (0, 0))
    claim.beat()
    assert claim.path.stat().st_mtime == 0
    claim.beat_at -= 60
    claim.beat()
    assert claim.path.stat().st_mtime > 0
    claim.release()


def test_a_restart_with_the_same_process_id_does_not_wait_for_itself(tmp_path: Path) -> None:
    here = re.sub(r"[^\w.-]", "-", platform.node())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text(f"{os.getpid()} {here} trained\n")
    assert not is_trained(tmp_path / "run")
    lock = FolderLock.take(tmp_path / "run", "trained")
    assert is_trained(tmp_path / "run")
    lock.release()
    assert not is_trained(tmp_path / "missing")


def test_what_is_no_claim_is_told_and_waited_for_by_nobody(tmp_path: Path) -> None:
    runner, runs = planned(tmp_path), tmp_path / "out" / "runs"
    os.mkfifo(runs / "baseline-s0.claim")
    (runs / "wide-s0.claim").write_text("{}")
    assert runner.run(lambda progress: None)
    assert all("is not a claim of tfkit" in why for why in runner.progress.failed.values())
    assert len(runner.progress.failed) == 2


TAKE = """
import sys, time
from pathlib import Path
from tfkit.studies.runner import RunClaim
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
claim = RunClaim.take(Path(sys.argv[1]))
print(claim is not None, flush=True)
sys.stdin.read()  # until all have answered
"""


@pytest.mark.full
def test_two_processes_never_get_one_stale_claim(tmp_path: Path) -> None:
    (tmp_path / "run.claim").write_text(f"claimed on {platform.node()}\n")
    words = [sys.executable, "-c", TAKE, str(tmp_path / "run.claim"), str(tmp_path / "go")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(words, **pipes) for _ in range(4)]
    time.sleep(2.0)
    (tmp_path / "go").touch()
    answers = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate(timeout=60)
    assert sorted(answers) == ["False", "False", "False", "True"]


def test_the_plan_is_dated_and_changes_after_results_are_told(done: tuple[Path, Result], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(done[0], tmp_path / "copy")) / "studies" / "small"
    before = read_plan(folder)
    assert before.made and not before.changed
    assert keep_plan(folder, before).changed == ()
    grown = keep_plan(folder, replace(before, seeds=(0, 1, 2), claims=()))
    assert grown.made == before.made
    assert [text.partition(" on 2")[0] for text in grown.changed] == [
        "seeds: [0, 1] -> [0, 1, 2]",
        'claims: ["norm=layer_norm > norm=rms_norm on valid.loss"] -> []',
    ]
    assert grown.changed[0].endswith("when 4 runs had ended")
    report = study_report(read_plan(folder), folder)
    report.write(folder)
    page = (folder / "report.html").read_text()
    assert "The plan was changed after results were seen" in page and "[0, 1] -&gt; [0, 1, 2]" in page
    assert before.made in page
    (row,) = [row for row in report.rows("valid.loss") if row["arm"] != "baseline"]
    assert row["verdict"] == "open: not all planned runs have ended; plan changed"
    fresh = keep_plan(tmp_path / "new", before)
    assert keep_plan(tmp_path / "new", replace(fresh, seeds=(0, 1, 2))).changed == ()  # nothing was seen yet


def test_runs_that_began_before_the_plan_are_marked(done: tuple[Path, Result], tmp_path: Path) -> None:
    """In words, table, claim, page, LaTeX and data; only the rows with such a run."""
    before, folder = read_plan(done[0] / "studies" / "small"), tmp_path / "again"
    assert not study_report(before, done[0] / "studies" / "small").results.early
    shutil.copytree(done[0] / "studies" / "small" / "runs", folder / "runs")
    report = study_report(keep_plan(folder, replace(before, measure=("valid.loss",))), folder)
    report.write(folder)
    assert all("; seen before the plan" in one.words() for one in report.results.comparisons)
    (row,) = [row for row in report.rows("valid.loss") if row["arm"] != "baseline"]
    (claim,) = report.claim_rows()
    assert all("; seen before the plan" in verdict for verdict in (row["verdict"], claim["verdict"]))
    assert "norm=rms\\_norm; seen before the plan" in report.latex()
    assert "; seen before the plan" in (folder / "report.md").read_text().split("\n\n")[2]
    data = json.loads((folder / "results.json").read_text())
    assert len(data["seen_before_the_plan"]) == 4 and data["comparisons"][0]["mark"].startswith("seen before the plan")
    shutil.rmtree(folder)
    (folder / "runs").mkdir(parents=True)
    shutil.copytree(done[0] / "studies" / "small" / "runs" / "norm=rms_norm-s1", folder / "runs" / "norm=rms_norm-s1")
    assert list(study_report(keep_plan(folder, before), folder).results.early) == ["norm=rms_norm-s1"]


def test_a_study_is_tuned_by_the_twin_on_the_validation_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune, data = {"train.schedule.lr": [0.05, 0.01]}, {"test": {"type": "text", "files": "valid.txt"}}
    train = {"metrics": ["perplexity", "bits_per_character"], "validate": {"metrics": ["perplexity"]}}
    more = {"data": data, "train": train}
    plans = {}
    for first in ("test.loss", "test.bits_per_character", "test.perplexity", "seconds", "valid.loss"):
        source = StudySource(str(study(tmp_path, more=more, measure=[first], tune=tune)))
        plans[first] = make_plan(source, tmp_path / "out", timed=False)
        doubts = [fault for fault in source.recipe().warnings if fault.path == "study.measure[0]"]
        assert [fault.message for fault in doubts] == [
            "valid.loss is judged, and study.tune chooses by it, which favours lucky values; list test.loss instead"
        ] * (first == "valid.loss")
    twins = {"test.perplexity": "valid.perplexity"}
    assert all(plan.tuned_by == twins.get(first, "valid.loss") for first, plan in plans.items())
    scores = {0.05: {"valid.loss": 1.0, "test.loss": 9.0}, 0.01: {"valid.loss": 2.0, "test.loss": 1.0}}
    monkeypatch.setattr(Board, "state", lambda self, run: "done")
    monkeypatch.setattr(Board, "scores", lambda self, run: scores[run.tuned["train.schedule.lr"]])
    assert Board(plans["test.loss"], tmp_path).best()["baseline"] == {"train.schedule.lr": 0.05}
    with pytest.raises(RecipeError, match=r"study\.tune: needs data\.valid, the split by which values are chosen"):
        StudySource(
            str(study(tmp_path, more={**more, "data": {**data, "valid": None}}, measure=["seconds"], tune=tune))
        ).recipe()


def test_altered_runs_are_named_and_no_evidence(done: tuple[Path, Result], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(done[0], tmp_path / "copy")) / "studies" / "small"
    file = folder / "runs" / "norm=rms_norm-s1" / "run.json"
    history = json.loads(file.read_text())
    history["best"]["loss"] -= 0.5
    file.write_text(json.dumps(history))
    found = tfkit("compare", folder, "--out", tmp_path / "page", folder=tmp_path)
    assert found.exit_code == 1, found.output
    printed = " ".join(found.stdout.split())
    assert "norm=rms_norm-s1 was altered" in printed and "claim: norm=layer_norm > norm=rms_norm" in printed
    assert "held" not in printed
    page = (tmp_path / "page" / "report.html").read_text()
    assert "Altered runs, which are not counted" in page and "has changed since it was written" in page
    runs = [folder / "runs" / f"{arm}-s{seed}" for arm in ("baseline", "norm=rms_norm") for seed in (0, 1)]
    data = json.loads(tfkit("compare", *runs, "--json", folder=tmp_path).stdout)
    assert data["comparisons"][0]["verdict"] == "open" and list(data["altered"]) == [str(runs[-1])]


@pytest.mark.slow
def test_on_a_terminal_a_table_shows_each_run(done: tuple[Path, Result]) -> None:
    """What is done is not repeated: the plan, the table of all runs, and the verdicts, within the terminal's width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tfkit", "study", "small.yaml"],
        cwd=done[0], stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"},
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    pieces = []
    with contextlib.suppress(OSError):  # the terminal of a process that has ended
        while piece := os.read(master, 65536):
            pieces.append(piece)
    os.close(master)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(pieces).decode())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    assert any(re.fullmatch(r"variant +seed 0 +seed 1", line) for line in lines)
    assert any(re.fullmatch(r"norm=rms_norm +\d\.\d+ +\d\.\d+", line) for line in lines)
    assert "4 of 4 done, 0 running, 0 s left" in lines
    assert max(map(len, lines)) <= 80


def test_a_training_that_began_first_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a killed study left locks the folder while this study starts the same run."""
    runner, run, out = planned(tmp_path), PlannedRun("baseline", 0), tmp_path / "out"
    claim = RunClaim.take(out / "runs" / "baseline-s0.claim")
    assert claim is not None
    refused = Trained([], out)
    refused.status = 2
    runner.progress.workers.append(Worker(run, refused, claim))  # type: ignore[arg-type]
    monkeypatch.setattr("tfkit.studies.runner.is_trained", lambda folder: True)
    monkeypatch.setattr("tfkit.studies.runner.held_by", lambda folder: "trained by process 7")
    runner._ended(runner.progress.workers[0])
    assert not runner.progress.failed
    assert runner.progress.events == ["baseline-s0: is trained by process 7; waiting for it"]
