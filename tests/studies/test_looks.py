"""`seeds: {up_to: 20, worth: 0.01}`: looks after each seed, by a test that holds whenever it is looked at."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from tests.studies.small import Trained, replaced, study, tfkit
from tests.studies.test_statistics import drawn
from tfkit.core.errors import RecipeError
from tfkit.studies.arms import StudySource
from tfkit.studies.board import Board
from tfkit.studies.plan import Plan, PlannedRun
from tfkit.studies.planning import make_plan
from tfkit.studies.results import study_results
from tfkit.studies.statistics import LEVEL, PRIOR, anytime_p, anytime_reach, least_pairs

from ..sampling import looped

LOOKS: dict[str, Any] = {"up_to": 20, "worth": 0.05}
MOST = 20
EQUAL = "wide+norm=rms_norm"


@looped(("t", "pairs"), [(2.5, 2), (3.0, 5), (-4.0, 12), (7.0, 4)])
def test_p_is_the_inverse_of_a_mixture_of_likelihoods(t: float, pairs: int) -> None:
    """Of Student's t over differences in standard deviations, integrated."""

    def likelihood(shift: float) -> float:
        weight = stats.norm.pdf(shift, scale=math.sqrt(PRIOR))
        return float(stats.nct.pdf(t, pairs - 1, shift * math.sqrt(pairs)) * weight)

    mixed, _ = integrate.quad(likelihood, -8, 8)
    assert anytime_p(t, 1.0, pairs) == pytest.approx(min(1.0, stats.t.pdf(t, pairs - 1) / mixed), rel=1e-5)


@pytest.mark.parametrize("pairs", [5, 9, 30])
def test_the_interval_ends_where_p_is_the_level(pairs: int) -> None:
    reach = float(anytime_reach(0.3, pairs, 0.01))
    assert anytime_p(reach, 0.3, pairs) == pytest.approx(0.01)
    assert anytime_reach(0.3, least_pairs(0.01) - 1, 0.01) == math.inf


def looked(values: np.ndarray, step: float, worth: float) -> tuple[np.ndarray, np.ndarray]:
    """The decision of each arm of studies [studies, arms, seeds] against the first, and the seeds that it takes.

    -1 and 1 are different, 2 is within the margin, 0 is undecided.
    """
    differences, level = values[:, 1:] - values[:, :1], LEVEL / (values.shape[1] - 1)
    decided = np.zeros(differences.shape[:2], int)
    stopped = np.full(differences.shape[:2], values.shape[2])
    for pairs in range(2, values.shape[2] + 1):
        own = differences[..., :pairs]
        mean, error = own.mean(-1), np.maximum(own.std(-1, ddof=1), max(step, 1e-9)) / math.sqrt(pairs)
        found = np.where(anytime_p(mean, error, pairs) < level, np.sign(mean), 0)
        found = np.where((found == 0) & (np.abs(mean) + anytime_reach(error, pairs, level) <= worth), 2, found)
        new = (decided == 0) & (found != 0)
        decided, stopped = np.where(new, found, decided), np.where(new, pairs, stopped)
    return decided, stopped


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "skewed", "tied", "bounded"])
def test_looking_after_each_seed_finds_nothing_that_is_not_there(kind: str) -> None:
    """2,000 studies of 8 equal arms: in at most 5 % some arm is called different at any of 19 looks."""
    values, step = drawn(kind, np.random.default_rng(9), (2_000, 8, MOST))
    decided, _ = looked(values, step, 0.0)
    wrong = float(np.mean((np.abs(decided) == 1).any(1)))
    assert wrong <= LEVEL


@pytest.mark.slow
def test_looks_save_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """7 variants of which 3 are equal, with differences in standard deviations of a run, against 20 seeds for each."""
    truth = np.array([0.0, 0.0, 0.0, 0.0, 1.5, -2.0, 3.0, -6.0])
    values = np.random.default_rng(8).normal(size=(2_000, 8, MOST)) + truth[:, None]
    decided, stopped = looked(values, 0.0, 2.0)
    runs = stopped.sum(1) + stopped.max(1)
    saved = 1 - float(runs.mean()) / (8 * MOST)
    found = [float(np.mean(decided[:, arm] == np.sign(truth[arm + 1]))) for arm in range(3, 7)]
    with capsys.disabled():
        print(f"\nlooks save {saved:.0%} of the runs; found {', '.join(f'{one:.0%}' for one in found)}")
    assert saved > 0.3
    assert min(found[2:]) > 0.99
    wrong = (decided[:, :3] % 2 != 0).any(1) | (decided[:, 5:] == 2).any(1)
    assert float(np.mean(wrong)) <= LEVEL


def planned(folder: Path, **keys: Any) -> Plan:
    keys = {"compare": ["wide", EQUAL, "norm"], "seeds": LOOKS, **keys}
    return make_plan(StudySource(str(study(folder, **keys))), folder / "out", timed=False)


LOSSES = {"baseline": 2.0, "wide": 1.0, EQUAL: 2.0, "norm=rms_norm": 2.03}


def losses(run: PlannedRun) -> float | None:
    """The loss of a run: wide is far better, another is equal, rms_norm noisy, and a fourth run of it diverges."""
    noise = 0.01 * math.sin(13 * run.seed + len(run.arm))
    spread = 60 if run.arm.startswith("norm") else 1
    return None if run.arm.startswith("norm") and run.seed == 3 else LOSSES[run.arm] + spread * noise


@pytest.mark.full
def test_a_variant_stops_when_it_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline goes on as far as the last of them."""
    plan, done = planned(tmp_path), set[PlannedRun]()

    def state(_: Board, run: PlannedRun) -> str:
        return "waiting" if run not in done else "diverged" if losses(run) is None else "done"

    def scores(board: Board, run: PlannedRun) -> dict[str, float | None]:
        return {"valid.loss": losses(run)} if state(board, run) == "done" else {}

    monkeypatch.setattr(Board, "state", state)
    monkeypatch.setattr(Board, "scores", scores)
    board, steps = Board(plan, tmp_path / "out"), []
    while left := [run for run in board.runs() if run not in done]:
        steps.append({(run.arm, run.seed) for run in left})
        assert not study_results(plan, tmp_path / "out").comparisons[0].better
        done.update(left)
    assert steps[0] == {(name, 0) for name in LOSSES}
    counts = {name: sum(run.arm == name for run in done) for name in LOSSES}
    assert counts["norm=rms_norm"] == 4 and counts["baseline"] == max(counts.values()) < MOST
    found = {one.arm: one for one in study_results(plan, tmp_path / "out").comparisons}
    assert {arm: one.n for arm, one in found.items()} == {**{arm: counts[arm] for arm in found}, "norm=rms_norm": 3}
    assert found["wide"].words() == "better" and found[EQUAL].words() == "equal within 0.05"
    assert found["norm=rms_norm"].words() == "open: diverged in 1 of 4"
    assert found["wide"].seeds is None and counts["wide"] >= least_pairs(LEVEL / plan.comparisons)
    assert plan.comparisons == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"seeds": {"up_to": 3, "worth": 1}}, r"up_to: 3 seeds cannot decide any of 3 comparisons; give 5 or more$"),
        ({"seeds": {"up_to": 1, "worth": 1}}, r"study\.seeds\.up_to: must be at least 2, got 1$"),
        ({"seeds": {"up_to": 20}}, r"study\.seeds: needs the option 'worth'$"),
        ({"seeds": {"up_to": 20, "worth": 0}}, r"study\.seeds\.worth: must be greater than 0, got 0$"),
        ({"seeds": {**LOOKS, "wort": 1}}, r"study\.seeds\.wort: unknown option"),
        ({"measure": ["parameters"]}, r"'parameters' does not depend on the seed"),
        (
            {"equal_within": {"valid.loss": 0.1}},
            r"valid\.loss: study\.seeds\.worth already sets the margin",
        ),
    ],
)
def test_what_makes_no_looks_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        planned(tmp_path, **keys)
    assert len(refused.value.faults) == 1
    refused.match(message)


@pytest.mark.full
def test_a_study_with_looks_from_its_line_to_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin that everything is within, the least number of seeds is trained, and nothing twice."""
    replaced(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    study(tmp_path, compare=["wide"], seeds={"up_to": 9, "worth": 1e6})
    printed = tfkit("study", "small.yaml", folder=tmp_path)
    assert printed.exit_code == 0, printed.output
    text = " ".join(printed.stdout.split())
    least = least_pairs(LEVEL)
    assert "at most 18 runs of 2 variants" in text and f"({2 * least} of at most 18 done" in text
    assert "equal within 1e+06" in text
    folder = tmp_path / "studies" / "small"
    assert len(list((folder / "runs").glob("*-s*"))) == 2 * least
    plan = json.loads((folder / "study.json").read_text())
    assert plan["worth"] == 1e6 and plan["made"] and len(plan["seeds"]) == 9
    assert "Looks after each seed: a variant stops when" in (folder / "report.html").read_text()
    Trained.began = []
    assert tfkit("study", "small.yaml", folder=tmp_path).exit_code == 0 and Trained.began == []
    study(tmp_path, compare=["wide"], seeds={"up_to": 9, "worth": 1e-6})
    assert tfkit("study", "small.yaml", "--commands", folder=tmp_path).stdout.count("tfkit train") == 2
    assert "worth: 1000000.0 -> 1e-6 on 2" in json.loads((folder / "study.json").read_text())["changed"][0]
