"""Equal budgets: a key is solved for by the counter, or refused with how near it comes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.studies.small import study
from tests.training.small import RECIPE
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count_parameters
from tfkit.runs.folder import value_word
from tfkit.runs.history import History
from tfkit.studies.arms import StudySource, nearest_value, plain, without_seed
from tfkit.studies.board import Board
from tfkit.studies.plan import Plan, PlannedRun, identity, runs_of
from tfkit.studies.plan_file import keep_plan, read_plan
from tfkit.studies.planning import make_plan
from tfkit.studies.process import Timing, command_of

from ..sampling import looped

D_FF = "model.layer.feedforward.d_ff"
WIDER = {"model": {"d_model": 32, "layer": {**RECIPE["model"]["layer"], "feedforward": {"type": "mlp", "d_ff": 96}}}}


def plan(folder: Path, **keys: Any) -> Plan:
    return make_plan(StudySource(str(study(folder, **keys))), folder / "out", timed=False)


def test_parameters_are_matched_and_the_value_is_the_nearest(tmp_path: Path) -> None:
    source = StudySource(str(study(tmp_path, more=WIDER, compare=["glu"], match={"parameters": D_FF})))
    found = make_plan(source, tmp_path / "out", timed=False)
    baseline, glu = found.arms
    assert baseline.solved == {}
    assert 60 < glu.solved[D_FF] < 68  # a gated layer has three matrices in the place of two
    assert abs(glu.parameters - baseline.parameters) / baseline.parameters < 0.01

    def off(value: int) -> int:
        recipe = source.recipe(glu.variants, {D_FF: value})
        return abs(count_parameters(source.blueprint(recipe)) - baseline.parameters)

    assert off(glu.solved[D_FF]) <= min(off(glu.solved[D_FF] - 1), off(glu.solved[D_FF] + 1))


def test_flops_are_matched_of_a_token_or_of_the_training(tmp_path: Path) -> None:
    baseline, glu = plan(tmp_path, more=WIDER, compare=["glu"], match={"flops": D_FF}).arms
    assert abs(glu.flops - baseline.flops) / baseline.flops < 0.01
    more = {"train": {"steps": 100, "metrics": []}}
    baseline, wide = plan(tmp_path, more=more, compare=["wide"], match={"flops": "train.steps"}).arms
    assert wide.solved["train.steps"] == round(100 * baseline.flops / wide.flops) < 100


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (D_FF, r"'wide' cannot have the [\d,]+ parameters of the baseline: the nearest is .*d_ff: 1 with"),
        ("model.layer.norm", r"model\.layer\.norm: must be a positive whole number in the baseline; got 'layer_norm'"),
    ],
)
def test_a_budget_that_nothing_matches_is_refused(key: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        plan(tmp_path, compare=["wide"], match={"parameters": key})


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


def test_a_probe_is_trained_beside_each_run_by_the_same_architecture(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"compare": ["wide"], "measure": ["valid.loss", {"probe": "induction", "steps": 7}]}
    found = plan(tmp_path, **keys)
    assert found.measure == ("valid.loss", "probe.induction")
    assert "probe.induction" in found.rising
    runs = list(dict.fromkeys(runs_of(found, {"baseline": {}, "wide": {}})))
    assert [run.name for run in runs if run.seed == 1] == [
        "baseline-s1",
        "baseline-s1-probe-induction",
        "wide-s1",
        "wide-s1-probe-induction",
    ]
    assert len(runs) == found.most_runs == 8
    source = StudySource(str(tmp_path / "small.yaml"))
    probed = source.recipe(("wide",), found.values(runs[-1]))
    assert probed.objective is not None
    assert probed.objective.part.part_name == "completion"
    assert probed.train.steps == found.run_steps(runs[-1]) == 7
    assert probed.blueprint().last.d_model == 16


def test_a_probe_has_its_own_difficulty_and_its_own_values_of_training(tmp_path: Path) -> None:
    probe = {"probe": {"type": "induction", "shortest": 6}, "steps": 7, "set": {"data.batch": {"size": 5}}}
    found = plan(tmp_path, compare=["wide"], measure=["valid.loss", probe])
    assert found.measure == ("valid.loss", "probe.induction")
    run = next(run for run in runs_of(found, {arm.name: {} for arm in found.arms}) if run.probe)
    probed = StudySource(str(tmp_path / "small.yaml")).recipe((), found.values(run))
    assert probed.data is not None
    assert probed.data.batch.size == 5
    assert {split: corpus.shortest for split, corpus in probed.data.splits()} == {"train": 6, "valid": 6, "test": 6}


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ({"probe": "inductin"}, r"'inductin' is not a probe; available: .*Did you mean 'induction'"),
        ({"probe": "docstrings"}, r"'docstrings' is not a probe"),
        ({"probe": {"shortest": 3}}, r"a mapping needs a `type`"),
        ({"probe": {"type": "induction", "shortst": 3}}, r"shortst"),
        ({"probe": {"type": "induction", "split": "valid"}}, r"split: the study chooses it"),
        ({"probe": "induction", "set": {"data.train": "copying"}}, r"set: data.train: the probe sets it itself"),
        ({"probe": "induction", "steps": 3, "set": {"train.steps": 4}}, r"set: train.steps: the probe sets it itself"),
        ({"probe": "induction", "set": {"train.seed": 3}}, r"set: train.seed: is no key that makes another training"),
        ({"probe": "induction", "set": {"train.stepz": 3}}, r"stepz"),
        ({"probe": "induction", "set": {"train.batch..": 3}}, r"train.batch"),
    ],
)
def test_what_is_no_probe_is_refused(probe: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        plan(tmp_path, measure=["valid.loss", probe])
    assert all(fault.path.startswith("study.measure[1]") and fault.line > 1 for fault in caught.value.faults)


def test_the_score_of_a_probe_belongs_to_the_run_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(plan(tmp_path, measure=["valid.loss", {"probe": "induction"}]), tmp_path / "out")
    monkeypatch.setattr(Board, "state", lambda self, run: "done")
    monkeypatch.setattr(Board, "history", lambda self, run: History(recipe="small", seed=run.seed))
    monkeypatch.setattr("tfkit.studies.board.measured", lambda history, folder: {"test.exact_match": 75.0})
    assert board._probed(PlannedRun("baseline", 0)) == {"probe.induction": 75.0}
    assert board._probed(PlannedRun("baseline", 0, probe="induction")) == {}


@pytest.mark.parametrize("text", ["train.seed=7", "train.schedule.lr=0.3", f"{D_FF}=9"])
def test_a_set_of_what_the_study_sets_is_refused(text: str, tmp_path: Path) -> None:
    file = study(tmp_path, compare=["norm"], match={"parameters": D_FF}, tune={"train.schedule.lr": [0.1, 0.2]})
    with pytest.raises(UsageError, match=r"the study sets .* itself; change it in the study"):
        make_plan(StudySource(str(file), (text,)), tmp_path / "out", timed=False)


def test_what_the_study_sets_comes_last_in_a_command(tmp_path: Path) -> None:
    source = StudySource(str(study(tmp_path, compare=["wide"])), ("train.steps=100000",))
    words = command_of(source, ("wide",), {"train.steps": 12, "study": None}, tmp_path / "run")
    assert words.index("train.steps=100000") < words.index("train.steps=12")
    assert source.recipe(("wide",), {"train.steps": 12, "study": None}).train.steps == 12


def test_the_steps_are_those_of_the_variant_and_of_what_is_tuned(tmp_path: Path) -> None:
    more = {"variants": {"short": {"train.steps": 1}}}
    found = plan(tmp_path, more=more, compare=["short"])
    assert [found.steps_of(arm) for arm in found.arms] == [2, 1]
    tuned = plan(tmp_path, compare=["wide"], tune={"train.steps": [3, 4]})
    assert [tuned.run_steps(run) for run in tuned.tuning(tuned.arms[1])] == [3, 4]


def test_a_tuned_value_that_cannot_be_is_told_at_its_place(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"small\.yaml:\d+:\d+: study\.tune: 'baseline': train\.schedule\.lr: "):
        plan(tmp_path, compare=["wide"], tune={"train.schedule.lr": ["a"]})


@looped(
    ("first", "second"),
    [(-1, 1), (False, None), ("x/train.txt", "train.txt"), (0.1, 1), ([1], [2]), ({"type": "a"}, "a")],
)
def test_other_values_have_other_words(first: Any, second: Any) -> None:
    if first == {"type": "a"}:
        assert value_word("k", first) == value_word("k", second)  # the same part
    else:
        assert value_word("k", first) != value_word("k", second)


@pytest.mark.full
def test_another_budget_is_another_study(tmp_path: Path) -> None:
    found = [plan(tmp_path, match={"flops": "train.steps"}), plan(tmp_path)]
    assert found[0].identity != found[1].identity


def test_the_hash_of_a_recipe_is_that_of_earlier_versions(tmp_path: Path) -> None:
    """They hashed train.parallel.pieces, a removed key, and no generate.invariant; their studies are continued."""
    recipe = load_recipe(study(tmp_path))
    data = without_seed(plain(recipe))
    data["train"]["parallel"]["pieces"] = "none"
    assert data["generate"].pop("invariant") is False
    text = json.dumps([data, None], sort_keys=True, default=str).replace(str(tmp_path.resolve()), ".")
    assert identity(recipe) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.full
def test_tokens_and_seconds_are_matched_by_steps_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wider model takes twice as long; what was solved for stays when the study goes on."""
    times = {"baseline": Timing(0.01, 50.0), "wide": Timing(0.02, 50.0)}
    monkeypatch.setattr("tfkit.studies.planning.trial", lambda source, arm, folder: times[arm.name])
    (tmp_path / "tokens").mkdir()
    of_tokens = plan(tmp_path / "tokens", compare=["wide"], match={"tokens": 1000})
    assert [of_tokens.steps_of(arm) for arm in of_tokens.arms] == [20, 20]
    of_seconds = plan(tmp_path, compare=["wide"], match={"seconds": 1.0})
    assert [of_seconds.steps_of(arm) for arm in of_seconds.arms] == [100, 50]
    keep_plan(tmp_path / "out", of_seconds)
    times["wide"] = Timing(0.04, 50.0)
    again = plan(tmp_path, compare=["wide"], match={"seconds": 1.0})
    assert [again.steps_of(arm) for arm in again.arms] == [100, 50]


@pytest.mark.full
def test_a_study_that_was_moved_is_the_same_one(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    assert plan(tmp_path / "here").identity == plan(tmp_path / "there").identity
    assert plan(tmp_path / "here").digests == plan(tmp_path / "there").digests


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"arms": []}, "arms: must not be empty"),
    ({"measure": []}, "measure: must not be empty"),
    ({"format": 99}, "format: 99 is not supported"),
    ({"seeds": "x"}, "seeds"),
    ({"timing": {"seconds_per_step": 1e308}}, "timing.seconds_per_step: .* less than or equal to 2147483648"),
    ({"claims": [{"says": "a < b"}]}, "claims: 'a' is not compared"),
]


def test_a_plan_that_somebody_changed_is_told(tmp_path: Path) -> None:
    keep_plan(tmp_path / "out", plan(tmp_path))
    file = tmp_path / "out" / "study.json"
    whole = json.loads(file.read_text())
    for change, message in CHANGES:
        file.write_text(json.dumps({**whole, **change}))
        with pytest.raises(RunError, match=message):
            read_plan(tmp_path / "out")
    file.write_text("[]")
    with pytest.raises(RunError, match="contains no plan"):
        read_plan(tmp_path / "out")
