"""`study.sizes`: each variant is repeated at each size; its difference holds, shrinks, reverses or cannot be told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.studies.small import Trained, replaced, study, tfkit
from tfkit.core.errors import RecipeError, UsageError
from tfkit.recipe.load import load_recipe
from tfkit.studies.arms import StudySource
from tfkit.studies.planning import make_plan
from tfkit.studies.results import ArmResult, Cell, Results, StudyContext, results_of
from tfkit.studies.wording import trends

from ..sampling import looped

SIZES = {"small": {"model.d_model": 8}, "large": {"model.d_model": 24}}
SEEDS, NOISE = 5, np.random.default_rng(4).normal(size=(2, 2, 5)) * 0.01  # [size, arm, seed]


def made(small: float, large: float) -> Results:
    """Results of one variant with these differences; the largest size comes first."""
    arms = []
    for place, (size, difference) in enumerate({"large": large, "small": small}.items()):
        losses = NOISE[place] + np.array([[2.0 - place], [2.0 - place + difference]])
        for name, own in zip(("baseline", "wide"), losses, strict=True):
            cells = tuple(Cell(seed, "done", name, {"valid.loss": loss}) for seed, loss in enumerate(map(float, own)))
            arms.append(ArmResult(f"{name}@{size}", cells, parameters=20 - 10 * place, size=size))
    return results_of(StudyContext("s"), arms, ("valid.loss", "parameters"), ())


@looped(
    ("small", "large", "verdict"),
    [
        (-0.5, -0.5, "holds"),
        (-0.5, -0.9, "holds"),
        (-0.5, -0.2, "shrinks"),
        (-0.5, 0.0, "shrinks"),
        (-0.5, 0.3, "reverses"),
        (0.0, -0.5, "cannot tell"),
        (0.0, 0.0, "cannot tell"),
    ],
)
def test_a_trend_by_hand(small: float, large: float, verdict: str) -> None:
    (found,) = trends(made(small, large))
    assert (found.arm, list(found.by_size), found.verdict) == ("wide", ["small", "large"], verdict)
    by_size = NOISE[:, 1] - NOISE[:, 0] + np.array([[large], [small]])
    change = by_size[0] - by_size[1]
    reach = stats.t.isf(0.025, SEEDS - 1) * change.std(ddof=1) / np.sqrt(SEEDS)
    got = found.change
    assert [got.mean, got.low, got.high] == pytest.approx([change.mean(), change.mean() - reach, change.mean() + reach])
    assert found.by_size["small"].mean == pytest.approx(by_size[1].mean())


def test_a_change_within_the_noise_cannot_be_told() -> None:
    """Beyond the noise at the smallest size, neither at the largest nor in its change."""
    results = made(-0.5, 0.0)
    cells = tuple(Cell(seed, "done", "", {"valid.loss": 2.0 + (-1.0) ** seed}) for seed in range(SEEDS))
    arms = [ArmResult(arm.name, cells if arm.name == "wide@large" else arm.cells, parameters=arm.parameters,
                      size=arm.size) for arm in results.arms]  # fmt: skip
    (found,) = trends(results_of(StudyContext("s"), arms, ("valid.loss",), ()))
    assert found.by_size["small"].verdict == "better" and found.verdict == "cannot tell"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizes")
    study(folder, compare=[], cross=["norm", "wide"], sizes=SIZES, baseline={"model.num_layers": 1},
          more={"variants": {"norm": {"model.layer.norm": ["layer_norm", "rms_norm"]},
                             "wide": {"model.layer.feedforward.d_ff": 64}}})  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        found = tfkit("study", "small.yaml", folder=folder)
    assert found.exit_code == 0, found.output
    assert "wide  small: " in " ".join(found.stdout.split()) or "change [95 % interval]" in found.stdout
    return folder


@pytest.mark.full
def test_each_cell_is_trained_at_each_size(done: Path) -> None:
    folder = done / "studies" / "small"
    data = json.loads((folder / "results.json").read_text())
    cells = ("norm=layer_norm+wide", "norm=rms_norm", "norm=rms_norm+wide")
    names = {f"{name}@{size}" for size in SIZES for name in ("baseline", *cells)}
    assert {arm["name"] for arm in data["arms"] if arm["same_as"] is None} == names
    assert {run.name.removesuffix("-s1") for run in (folder / "runs").glob("*-s1")} == names
    assert {one["against"] for one in data["comparisons"] if "@large" in one["arm"]} == {"baseline@large"}
    assert [one["arm"] for one in data["by_size"]] == [*cells]
    page, text = ((folder / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert "## Differences by size" in text and "From the smallest size to the largest, on valid.loss" in text
    assert page.count('class="forest"') == 2 and "valid.loss at large while training" in page
    assert (folder / "results.tex").read_text().count("\\begin{tabular}") == 2


@pytest.mark.full
def test_the_same_line_trains_what_is_missing(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    folder = Path(shutil.copytree(done, tmp_path / "copy"))
    shutil.rmtree(folder / "studies" / "small" / "runs" / "norm=rms_norm@large-s1")
    assert tfkit("study", "small.yaml", folder=folder).exit_code == 0
    assert Trained.began == ["norm=rms_norm@large-s1"]


def test_each_size_is_matched_by_itself(tmp_path: Path) -> None:
    d_ff = "model.layer.feedforward.d_ff"
    sizes = {name: {**values, d_ff: 96} for name, values in SIZES.items()}
    file = study(tmp_path, compare=["glu"], sizes=sizes, match={"parameters": d_ff})
    plan = make_plan(StudySource(str(file)), tmp_path / "out", timed=False)
    small, gated, large, other = plan.arms
    assert [arm.name for arm in plan.arms] == ["baseline@small", "glu@small", "baseline@large", "glu@large"]
    assert small.parameters < large.parameters and not small.solved and not large.solved
    for base, arm in ((small, gated), (large, other)):
        assert abs(arm.parameters - base.parameters) < 0.02 * base.parameters and 60 < arm.solved[d_ff] < 68
    assert set(plan.changes) == {"glu@small", "glu@large"}
    assert all("d_model" not in line for lines in plan.changes.values() for line in lines)


@looped(
    ("keys", "message"),
    [
        ({"sizes": {"one": {"model.d_model": 8}}}, r"study\.sizes: needs two sizes or more"),
        ({"sizes": {"a b": {"model.d_model": 8}, "c": {"model.d_model": 16}}}, r"'a b': name a size with letters"),
        ({"sizes": {**SIZES, "empty": {}}}, r"study\.sizes\.empty: must have 1 or more"),
        (
            {"sizes": {**SIZES, "long": {"train.steps": 9}}, "match": {"tokens": 99}},
            r"train\.steps: cannot be set, since study\.match\.tokens solves for it",
        ),
        ({"sizes": {**SIZES, "x": {"study.seeds": 1}}}, r"'study\.seeds' cannot be overridden in a study"),
        ({"sizes": {**SIZES, "x": {"train.seed": 1}}}, r"the study sets the seed of each run"),
        ({"sizes": SIZES, "tune": {"model.d_model": [8, 16]}}, r"cannot be tuned, since study\.sizes sets it"),
        ({"sizes": SIZES, "claims": [{"says": "norm=rms_norm < baseline"}]}, r"available: baseline@small, .*@large"),
    ],
)
def test_what_makes_no_size_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(study(tmp_path, **keys))


def test_a_size_that_undoes_a_variant_or_equals_another_is_refused(tmp_path: Path) -> None:
    for keys in ({"compare": ["wide"], "sizes": SIZES}, {"sizes": {"a": SIZES["small"], "b": SIZES["small"]}}):
        with pytest.raises(UsageError, match="changes nothing, or what it changes is set again by"):
            make_plan(StudySource(str(study(tmp_path, **keys))), tmp_path / "out", timed=False)


BUDGETS = {"budgets": [4, 2], "more": {"train": {"schedule": {"type": "constant", "lr": 0.01}}}}


@pytest.mark.full
def test_budgets_cross_with_sizes_and_the_page_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    for folder, sizes, first, last, axis in (
        ("one", {}, "2 steps", "4 steps", "budget"),
        ("both", SIZES, "small, 2 steps", "large, 4 steps", "size and budget"),
    ):
        (tmp_path / folder).mkdir()
        study(tmp_path / folder, compare=["norm=rms_norm"], sizes=sizes, **BUDGETS)
        assert tfkit("study", "small.yaml", folder=tmp_path / folder).exit_code == 0
        out = tmp_path / folder / "studies" / "small"
        points = [f"{name}-{steps}".lstrip("-") for name in sizes or [""] for steps in (2, 4)]
        assert {run.name for run in (out / "runs").iterdir()} == {
            f"{arm}@{point}-s{seed}" for arm in ("baseline", "norm=rms_norm") for point in points for seed in (0, 1)
        }
        data = json.loads((out / "results.json").read_text())
        assert [(one["arm"], one["size"], one["steps"]) for one in data["comparisons"]] == [
            (f"norm=rms_norm@{point}", point, int(point[-1])) for point in points
        ]
        (change,) = [one["change"] for one in data["by_size"]]
        assert (change["arm"], change["against"]) == (f"norm=rms_norm@{points[-1]}", f"norm=rms_norm@{points[0]}")
        text = (out / "report.md").read_text()
        for words in (
            f"## valid.loss at {last} (less is better)",
            f"## Differences by {axis}",
            f"From the smallest {axis} to the largest, on valid.loss: norm=rms_norm ",
            f"{first}: ",
            "On valid.loss after 2 steps, of 1 variant against baseline@",
        ):
            assert words in text, words


@looped(
    ("keys", "message"),
    [
        ({"budgets": [2]}, r"study\.budgets: needs two different numbers of steps or more"),
        ({"budgets": [2, 2]}, r"study\.budgets: needs two different numbers of steps or more"),
        ({"budgets": [2, 0]}, r"study\.budgets\[1\]"),
        ({"match": {"tokens": 99}}, r"budgets: cannot be combined with study\.match\.tokens: both set the length"),
        ({"match": {"seconds": 9}}, r"budgets: cannot be combined with study\.match\.seconds"),
        ({"match": {"flops": "train.steps"}}, r"budgets: cannot be combined with study\.match\.flops"),
        ({"tune": {"train.steps": [1, 2]}}, r"budgets: cannot be combined with train\.steps in study\.tune"),
        ({"baseline": {"train.epochs": 2}}, r"budgets: cannot be combined with train\.epochs in study\.baseline"),
        ({"sizes": {**SIZES, "x": {"train.steps": 9}}}, r"cannot be combined with train\.steps in study\.sizes\.x"),
        ({"more": {"train": {"steps": None, "epochs": 2}}}, r"budgets: cannot be combined with train\.epochs: both"),
        ({"more": {"train": {"max_time": "1h"}}}, r"budgets: cannot be combined with train\.max_time: both"),
        (
            {"more": {"variants": {"long": {"train.steps": 9, "model.d_model": 16}}}, "compare": ["long"]},
            r"budgets: cannot be combined with train\.steps in variants\.long",
        ),
        ({"claims": [{"says": "norm=rms_norm < baseline"}]}, r"available: baseline@2, .*@4"),
    ],
)
def test_what_sets_the_length_of_training_besides_budgets_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(study(tmp_path, **{"budgets": [2, 4], **keys}))


@pytest.mark.full
def test_a_budget_that_ends_in_the_warmup_or_is_set_again_is_refused(tmp_path: Path) -> None:
    file = study(tmp_path, budgets=[2, 4], more={"train": {"schedule": {"type": "cosine", "lr": 0.01, "warmup": 3}}})
    with pytest.raises(RecipeError, match="the warmup of 3 steps must be shorter than the 2 steps of training"):
        make_plan(StudySource(str(file)), tmp_path / "out", timed=False)
    file = study(tmp_path, **BUDGETS)
    with pytest.raises(UsageError, match=r"--set train\.steps=9: the study sets train\.steps itself"):
        make_plan(StudySource(str(file), ("train.steps=9",)), tmp_path / "out", timed=False)


def test_a_claim_is_about_the_first_measure_unless_it_names_another(tmp_path: Path) -> None:
    said = {"says": "norm=rms_norm < baseline"}
    file = study(tmp_path, measure=["seconds", "valid.loss"], claims=[said, {**said, "on": "valid.loss"}])
    plan = make_plan(StudySource(str(file)), tmp_path / "out", timed=False)
    assert [claim.on for claim in plan.claims] == ["seconds", "valid.loss"] and not plan.problem
