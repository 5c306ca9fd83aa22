"""Equal budgets: a key is solved for by the counter, or refused with how near it comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.studies.small import study
from tfkit.core.errors import UsageError
from tfkit.reports.counts import count_parameters
from tfkit.studies.arms import StudySource
from tfkit.studies.match import nearest_value
from tfkit.studies.plan import Plan, make_plan

D_FF = "model.layer.feedforward.d_ff"


def plan(folder: Path, **keys: Any) -> Plan:
    return make_plan(StudySource(str(study(folder, **keys))), folder / "out", timed=False)


def test_parameters_are_matched_and_the_value_is_the_nearest(tmp_path: Path) -> None:
    more = {"model": {"d_model": 32, "layer": {**_layer(), "feedforward": {"type": "mlp", "d_ff": 96}}}}
    source = StudySource(str(study(tmp_path, more=more, compare=["glu"], match={"parameters": D_FF})))
    found = make_plan(source, tmp_path / "out", timed=False)
    baseline, glu = found.arms
    assert baseline.solved == {}
    assert 60 < glu.solved[D_FF] < 68  # a gated layer has three matrices in the place of two
    assert abs(glu.parameters - baseline.parameters) / baseline.parameters < 0.01

    def off(value: int) -> int:
        recipe = source.recipe(glu.variants, {D_FF: value})
        return abs(count_parameters(source.blueprint(recipe)) - baseline.parameters)

    assert off(glu.solved[D_FF]) <= min(off(glu.solved[D_FF] - 1), off(glu.solved[D_FF] + 1))


def test_flops_are_matched(tmp_path: Path) -> None:
    more = {"model": {"d_model": 32, "layer": {**_layer(), "feedforward": {"type": "mlp", "d_ff": 96}}}}
    baseline, glu = plan(tmp_path, more=more, compare=["glu"], match={"flops": D_FF}).arms
    assert abs(glu.flops - baseline.flops) / baseline.flops < 0.01


def test_flops_of_the_training_are_matched_by_its_steps(tmp_path: Path) -> None:
    more = {"train": {"steps": 100, "metrics": []}}
    baseline, wide = plan(tmp_path, more=more, compare=["wide"], match={"flops": "train.steps"}).arms
    assert wide.solved["train.steps"] == round(100 * baseline.flops / wide.flops) < 100


def test_a_budget_that_nothing_matches_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"'wide' cannot have the [\d,]+ parameters of the baseline: the nearest is .*d_ff: 1 with"
    ):
        plan(tmp_path, compare=["wide"], match={"parameters": D_FF})


def test_a_key_that_holds_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model\.layer\.norm: the baseline says 'layer_norm' there; it needs a whole number"
    ):
        plan(tmp_path, compare=["wide"], match={"parameters": "model.layer.norm"})


def test_widths_that_are_refused_are_passed_over() -> None:
    """Of a width that divides by 8 alone."""
    asked: list[int] = []

    def count(value: int) -> int | None:
        asked.append(value)
        return value * value if value % 8 == 0 else None

    assert nearest_value(count, 101 * 101, 8) == 104
    assert nearest_value(count, 97 * 97, 8) == 96
    assert nearest_value(lambda value: None, 5, 3) is None
    assert max(asked) < 2000


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    found = plan(tmp_path, compare=["norm", "wide"], tune={"train.schedule.lr": [0.1, 0.2]}, seeds=[3, 5])
    assert found.most_runs == 3 * (2 + 1)
    names = [run.name for arm in found.trained for run in found.tuning(arm)]
    assert names[:2] == ["baseline-lr0.1-s3", "baseline-lr0.2-s3"]
    assert len(set(names)) == len(names)


def test_names_that_are_cut_alike_stay_apart(tmp_path: Path) -> None:
    first, second = (replace(run) for run in plan(tmp_path, compare=["norm"]).tuning(plan(tmp_path).arms[0]) * 2)
    assert first == second
    assert first.name == "baseline-s0"


def _layer() -> dict[str, Any]:
    from tests.training.small import RECIPE

    layer: dict[str, Any] = RECIPE["model"]["layer"]
    return layer
