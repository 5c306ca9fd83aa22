"""`study.design`: many options are screened in few runs; fresh runs of the largest follow, in the same command."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.studies.small import VARIANTS, Trained, replaced, study, tfkit
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.recipe.load import load_recipe
from tfkit.studies.arms import StudySource
from tfkit.studies.board import Board
from tfkit.studies.plan import Plan, PlannedRun
from tfkit.studies.plan_file import keep_plan, read_plan
from tfkit.studies.planning import check_study, make_plan
from tfkit.studies.runner import Runner

from ..sampling import looped

pytestmark = pytest.mark.full

MORE: dict[str, Any] = {
    "variants": {
        **VARIANTS,
        "squared": {"model.layer.feedforward.activation": "relu_squared"},
        "hot": {"train.schedule.lr": 1e17},
        "untied": {"model.head.tied": False},
        "parallel": {"model.layer.residual": "parallel"},
        "differential": {"model.layer.attention": {"type": "differential", "num_heads": 2, "dropout": 0.1}},
        "multi_query": {"model.layer.attention.num_kv_heads": 1},
        "rotary": {"model.position": "rotary"},
        "alibi": {"model.position": "alibi"},
        "same": {"model.layer.norm": "layer_norm"},
    },
    "train": {"steps": 3, "metrics": []},
}
SCREEN = ["squared | hot", "norm=rms_norm", "untied", "parallel", "differential", "multi_query"]
OPTIONS = [option for entry in SCREEN for option in entry.split(" | ")]
DESIGN: dict[str, Any] = {"screen": SCREEN, "runs": 16, "noise": 3, "confirm": {"most": 3, "runs": 8}}


def designed(folder: Path, more: dict[str, Any] | None = None, **keys: Any) -> StudySource:
    """The source of a study with this design."""
    folder.mkdir(exist_ok=True)
    return StudySource(str(study(folder, more={**MORE, **(more or {})}, **{"design": DESIGN, **keys})))


def losses(plan: Plan, board: Board, stage: str) -> tuple[list[tuple[str, ...]], list[float | None]]:
    """The options of the runs of a stage, and their losses."""
    runs = [(arm, PlannedRun(arm.name, seed)) for arm in plan.arms if arm.stage == stage for seed in arm.seeds]
    return [plan.options_of(arm) for arm, _ in runs], [board.scores(run).get("valid.loss") for _, run in runs]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was interrupted when its screen had ended, and then continued."""
    folder = tmp_path_factory.mktemp("design")
    source, out = designed(folder), folder / "studies" / "small"
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        plan = keep_plan(out, make_plan(source, out, timed=False))
        assert Runner(source, plan, out).run(lambda _: None)
        assert len(Trained.began) == len({*Trained.began}) == 16 + 3
        Trained.began.clear()
        found = tfkit("study", "small.yaml", folder=folder)
        assert found.exit_code == 0, found.output
        assert len(Trained.began) == 8 and all("@confirm-s" in name for name in Trained.began)
    text = " ".join(found.output.split())
    assert "16 runs to screen 7 options, 3 of noise, 8 to confirm" in text
    assert "differential excludes multi_query" in text and "cells to screen 16" in text and "cells to confirm 8" in text
    assert len([line for line in found.output.splitlines() if "cells to" in line]) == 2
    return folder


def test_a_screen_chooses_what_fresh_runs_confirm(done: Path) -> None:
    out = done / "studies" / "small"
    plan = read_plan(out)
    board, design = Board(plan, out), plan.design
    assert design is not None and design.excluded == [["differential", "multi_query"]] and plan.changed == ()
    cells, values = losses(plan, board, "screen")
    ended = [value is not None for value in values]
    assert ended == ["hot" not in cell for cell in cells] and 2 < ended.count(False) < 8, "divergence is an outcome"
    assert not any({"differential", "multi_query"} <= {*cell} or {"squared", "hot"} <= {*cell} for cell in cells)
    either = Counter(option for cell in cells for option in cell if option in ("differential", "multi_query"))
    assert min(either.values()) >= 4, "options that exclude each other share the cells"
    known = [option for option in OPTIONS if option != "hot"]
    matrix = np.array([[1.0, *(option in cell for option in known)] for cell in cells])[ended]
    y = np.array([value for value in values if value is not None])
    effects = np.linalg.lstsq(matrix, y, rcond=None)[0][1:]
    spread = np.sqrt(np.linalg.inv(matrix.T @ matrix).diagonal()[1:])
    ranked = sorted(zip(np.abs(effects / spread), known, strict=True), reverse=True)
    assert {*design.chosen} == {name for _, name in ranked[:3]}
    fresh, _ = losses(plan, board, "confirm")
    assert {option for cell in fresh for option in cell} == {*design.chosen} and len(fresh) == 8
    if {*design.chosen}.isdisjoint({"differential", "multi_query"}):
        assert len({*fresh}) == 8
    seeds = [seed for arm in (*plan.arms[1:], plan.arms[0]) for seed in arm.seeds]
    assert sorted(seeds) == list(range(16 + 3 + 8)) and plan.arms[0].seeds == (16, 17, 18)
    assert all(seed >= 19 for arm in plan.arms if arm.stage == "confirm" for seed in arm.seeds)
    assert {*OPTIONS} == {*plan.changes} and {arm.name for arm in plan.arms} == {*plan.digests}


def test_what_was_chosen_stays(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited run of the screen chooses nothing, and changes no choice that was made before."""
    replaced(monkeypatch)
    folder = Path(shutil.copytree(done, tmp_path / "copy"))
    out = folder / "studies" / "small"
    source, plan = StudySource(str(folder / "small.yaml")), read_plan(out)
    run = next(path for path in (out / "runs").iterdir() if path.name.endswith("-s0"))
    data = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**data, "best": {"loss": -100.0}}))
    again = make_plan(source, out, timed=False)
    assert again.arms == plan.arms and again.design == plan.design
    (lost,) = (path for path in (out / "runs").iterdir() if path.name.endswith("-s26"))
    shutil.rmtree(lost)
    assert tfkit("study", "small.yaml", folder=folder).exit_code == 1
    assert Trained.began == [lost.name] and read_plan(out).changed == ()
    file = out / "study.json"
    whole = json.loads(file.read_text())
    for change, message in (
        ({"design": None}, "is no cell of the design"),
        ({"arms": whole["arms"][1:]}, "a baseline and cells to screen must be first"),
        ({"design": {**whole["design"], "chosen": ["x"]}}, "no cells confirm x"),
    ):
        file.write_text(json.dumps({**whole, **change}))
        with pytest.raises(RunError, match=message):
            read_plan(out)
    arms = [arm for arm in whole["arms"] if arm["stage"] != "confirm"]
    file.write_text(json.dumps({**whole, "arms": arms, "design": {**whole["design"], "chosen": []}}))
    assert make_plan(source, out, timed=False).design.chosen == ()
    shutil.rmtree(run)
    assert tfkit("study", "small.yaml", "--commands", folder=folder).output.count("tfkit train") == 1
    assert tfkit("study", "small.yaml", folder=folder).exit_code == 0
    assert read_plan(out).arms == plan.arms and Trained.began[1:] == [run.name]


def test_the_noise_of_another_study(done: Path, tmp_path: Path) -> None:
    """Its runs are taken if they are enough, unaltered, and of this baseline."""
    folder = Path(shutil.copytree(done, tmp_path / "copy"))
    out = folder / "studies" / "small"
    keys = {"design": {**DESIGN, "noise": "studies/small"}}
    plan = make_plan(designed(folder, **keys), tmp_path / "out", timed=False)
    assert plan.design is not None and plan.arms[0].seeds == () and plan.most_runs == 16 + 8
    assert [*plan.design.scores] == ["16", "17", "18"]
    board = Board(read_plan(out), out)
    assert plan.design.scores["17"]["valid.loss"] == board.scores(PlannedRun("baseline", 17))["valid.loss"]
    assert not any(run.arm == "baseline" for run in Board(plan, tmp_path / "out").runs())
    for more in ({"train": {**MORE["train"], "steps": 4}}, {"data": {"batch": {"size": 3}}}):
        with pytest.raises(
            RecipeError, match=r"study\.design: \S+small holds runs of another recipe: \S+.* 2?3? -> [34]|x"
        ):
            check_study(designed(folder, more, **keys))
    (out / "runs" / "baseline-s17" / "run.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"holds 2 finished, unaltered runs of a baseline .*; 3 or more are needed"):
        check_study(designed(folder, **keys))


def test_stages_of_a_tuned_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen has the values that are best for the baseline; each cell that confirms is tuned."""
    rate, out = "train.schedule.lr", tmp_path / "out"
    screen = {**DESIGN, "screen": ["squared", *SCREEN[1:4]], "runs": 8, "confirm": {"most": 2, "runs": 4}}
    source = designed(tmp_path, design=screen, tune={rate: [0.1, 0.2]})
    plan = keep_plan(out, make_plan(source, out, timed=False))
    assert plan.most_runs == 8 + (3 + 1) + 2 * 4
    assert "; 2 tuned values, tried on the baseline and each cell to confirm" in plan.summary(1)
    assert [run.name for run in Board(plan, out).runs()] == ["baseline-lr0.1-s8", "baseline-lr0.2-s8"]
    weights = {"squared": 0.1, "untied": -3.0, "parallel": 2.0, "norm=rms_norm": -0.2}

    def scores(board: Board, run: PlannedRun) -> dict[str, float]:
        arm = board.plan.arm(run.arm)
        loss = sum(weights[one] for one in board.plan.options_of(arm)) + (run.tuned[rate] != 0.2) + run.seed % 3 / 100
        return {"valid.loss": loss}

    monkeypatch.setattr(Board, "state", lambda self, run: "waiting" if run.seed == 3 else "done")
    monkeypatch.setattr(Board, "scores", scores)
    assert make_plan(source, out, timed=False).arms == plan.arms, "a run of the screen has not ended"
    monkeypatch.setattr(Board, "state", lambda self, run: "done")
    grown = make_plan(source, out, timed=False)
    assert grown.design is not None and grown.design.chosen == ("untied", "parallel")
    runs = [run.name for run in Board(grown, out).runs()]
    assert len(runs) == len({*runs}) == grown.most_runs == plan.most_runs
    assert all(("lr0.2" in name) for name in runs if int(name.rpartition("-s")[2]) < 8)
    assert "untied+parallel@confirm-lr0.1-s14" in runs and "untied+parallel@confirm-lr0.2-s14" in runs
    monkeypatch.setattr(Board, "scores", lambda self, run: {})
    monkeypatch.setattr(Board, "state", lambda self, run: "diverged")
    assert make_plan(source, out, timed=False).arms == plan.arms, "nothing can be chosen"


def wrong(**keys: Any) -> dict[str, Any]:
    return {"design": {**DESIGN, **keys}}


@looped(
    ("keys", "message"),
    [
        (wrong(screen=["squared |", "untied"]), r"study\.design\.screen\[0\]: has a \| without a variant on each side"),
        (wrong(screen=["untied", "a@confirm"]), r"screen\[1\]: 'a@confirm' contains an @"),
        (wrong(screen=["untied", "squared | untied"]), r"screen\[0\]: 'untied' is listed twice"),
        (wrong(screen=["untyed"]), r"screen\[0\]: unknown variant 'untyed'; .*Did you mean 'untied'"),
        (wrong(screen=["norm"]), r"'norm' is not a choice of 'norm'; available: norm=layer_norm, norm=rms_norm"),
        (
            wrong(screen=["untied+wide"]),
            r"'untied\+wide': the study combines variants itself; list each one separately",
        ),
        (wrong(screen=[]), r"study\.design\.screen: must have 1 or more"),
        (wrong(noise=2), r"study\.design\.noise: must be at least 3"),
        (wrong(noise=-1, runs=0), r"study\.design\.runs: must be at least 2"),
        (wrong(confirm={"most": 0}), r"study\.design\.confirm\.most: must be at least 1"),
        (wrong(runz=3), r"study\.design\.runz: .*Did you mean 'runs'"),
        *(
            ({**wrong(), key: value}, rf"study\.{key}: cannot be combined with study\.design")
            for key, value in {
                "compare": ["wide"],
                "cross": ["wide"],
                "sizes": {"a": {"model.d_model": 8}, "b": {"model.d_model": 24}},
                "budgets": [1, 2],
                "seeds": 3,
            }.items()
        ),
        (
            {**wrong(), "measure": ["valid.loss", {"probe": "induction"}]},
            r"measure\[1\]: study\.design measures no probes",
        ),
        ({**wrong(noise="there"), "tune": {"train.schedule.lr": [0.1, 0.2]}}, r"design\.noise: give a number of runs"),
        (
            {**wrong(), "claims": [{"says": "wide < baseline"}]},
            r"'wide' is not compared .*available: baseline, squared",
        ),
        ({**wrong(), "claims": [{"says": "untied < parallel"}]}, r"a design compares an option with 'baseline' only"),
    ],
)
def test_what_makes_no_design_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message) as found:
        load_recipe(designed(tmp_path, **keys).file)
    assert all(fault.line > 0 for fault in found.value.faults)


@looped(
    ("keys", "message"),
    [
        (wrong(screen=["rotary", "alibi"], runs=4), r"alibi undoes rotary; write rotary \| alibi, or list alibi first"),
        (
            wrong(screen=["multi_query", "differential"], runs=4),
            r"write multi_query \| differential, or list differential",
        ),
        (wrong(runs=12), r"study\.design: no design has 12 runs of 7 options; use "),
        (wrong(screen=SCREEN[2:4], runs=64), r"study\.design: no design has 64 runs of 2 options"),
        (wrong(confirm={"most": 6, "runs": 7}), r"study\.design: no design has 7 runs of 6 options"),
        (wrong(screen=["same", "untied"], runs=4), r"'same' trains as 'baseline' does: it changes nothing"),
        (wrong(screen=["norm=layer_norm", "untied"], runs=4), r"'norm=layer_norm' trains as 'baseline' does"),
        (wrong(noise="nowhere"), r"study\.design: \S+nowhere/study\.json: is missing: \S+ contains no study"),
    ],
)
def test_a_design_that_is_none_is_refused_before_the_first_run(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((RecipeError, UsageError), match=message):
        check_study(designed(tmp_path, **keys))
    assert tfkit("check", "small.yaml", folder=tmp_path).exit_code == 2


def test_a_change_of_the_design_is_one_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells that confirm are no change; other numbers are."""
    out, screen = tmp_path / "out", {**DESIGN, "screen": SCREEN[1:4], "runs": 8, "confirm": {"most": 2, "runs": 4}}
    keep_plan(out, make_plan(designed(tmp_path, design=screen), out, timed=False))
    monkeypatch.setattr(Board, "state", lambda self, run: "done")
    monkeypatch.setattr(Board, "scores", lambda self, run: {"valid.loss": float(run.seed**2 % 7)})
    grown = keep_plan(out, make_plan(designed(tmp_path, design=screen), out, timed=False))
    assert grown.design is not None and len(grown.design.chosen) == 2 and grown.changed == ()
    more = {**screen, "confirm": {"most": 1, "runs": 8}}
    later = keep_plan(out, make_plan(designed(tmp_path, design=more), out, timed=False))
    assert later.design is not None and len(later.design.chosen) == 1
    assert any("design" in one and "runs had ended" in one for one in later.changed)
