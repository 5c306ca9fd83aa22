"""train.epochs: passes over the data in place of steps, counted once the data is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.training.small import outcome, small, trained
from tfkit.core.errors import RecipeError, RecipeWarning
from tfkit.recipe.load import load_recipe
from tfkit.run import load_run
from tfkit.studies.arms import StudySource, arms_of, study_of
from tfkit.training.setup import steps_of

TWO = {"steps": None, "epochs": 2}  # 6 texts in batches of 2


@pytest.mark.full
def test_epochs_train_as_their_steps_do(tmp_path: Path) -> None:
    by_steps = trained(small(tmp_path, steps=6), tmp_path / "steps")
    by_epochs = trained(small(tmp_path, **TWO), tmp_path / "epochs")
    assert outcome(by_epochs.folder) == outcome(by_steps.folder)
    assert "2 epochs: 6 steps" in (by_epochs.folder / "train.log").read_text()
    kept = yaml.safe_load((by_epochs.folder / "resolved.yaml").read_text())["train"]
    assert (kept["steps"], kept["epochs"]) == ("none", 2)
    assert load_run(by_epochs.folder).recipe.train.epochs == 2


@pytest.mark.full
def test_an_epoch_may_end_within_a_step(tmp_path: Path) -> None:
    recipe = small(tmp_path, **TWO, accumulate=4)
    assert steps_of(recipe) == 2
    lines = (trained(recipe, tmp_path / "run").folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.full
def test_a_finished_run_is_finished_and_more_epochs_go_on(tmp_path: Path) -> None:
    run = trained(small(tmp_path, **TWO), tmp_path / "run")
    before = outcome(run.folder)
    trained(small(tmp_path, **TWO), run.folder, resume=True)
    assert outcome(run.folder) == before
    trained(small(tmp_path, steps=None, epochs=3), run.folder, resume=True)
    assert len((run.folder / "metrics.jsonl").read_text().splitlines()) == 9


@pytest.mark.full
def test_the_schedule_ends_with_the_epochs(tmp_path: Path) -> None:
    recipe = small(tmp_path, **TWO, schedule={"type": "linear", "lr": 0.1, "warmup": 0})
    lines = (trained(recipe, tmp_path / "run").folder / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(line)["learning_rate"] for line in lines]
    assert rates[-1] == 0 and all(rates[:-1])


def test_what_does_not_fit_into_the_epochs_is_told(tmp_path: Path) -> None:
    recipe = small(tmp_path, **TWO, schedule={"type": "linear", "lr": 0.1, "warmup": 50}, evaluate_every=400)
    assert not recipe.warnings
    with pytest.warns(RecipeWarning) as told:
        steps_of(recipe)
    texts = sorted(str(one.message) for one in told)
    assert ["train.evaluate_every" in texts[0], "train.schedule.warmup" in texts[1]] == [True, True] and len(texts) == 2


def test_both_are_a_fault_with_two_places(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    file.write_text("extends: translate-numbers\ntrain:\n  steps: 5\n  epochs: 2\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(file)
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{file}:4:11: train.epochs: epochs: 2 conflicts with steps: 5 (at {file}:3:10);")


def test_a_later_layer_says_the_length_in_its_own_way(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: translate-numbers\ntrain: {epochs: 2}\nvariants: {long: {train.steps: 9}}\n")
    assert (load_recipe(file).train.steps, load_recipe(file).train.epochs) == (None, 2)
    for asked in ({"variant": "long"}, {"sets": "train.steps=9"}, {"overrides": {"train.steps": 9}}):
        train = load_recipe(file, **asked).train  # type: ignore[arg-type]
        assert (train.steps, train.epochs) == (9, None)
    assert load_recipe(file, sets=["train.epochs=none"]).train.steps == 10_000
    with pytest.raises(RecipeError, match=r"train\.epochs: .*0"):
        load_recipe(file, sets=["train.epochs=0"])


def test_a_study_counts_the_epochs_of_its_arms(tmp_path: Path) -> None:
    small(tmp_path)
    text = yaml.safe_load(small(tmp_path, **TWO).resolved())
    text["variants"] = {"once": {"train.epochs": 1}}
    text["study"] = {"compare": ["once"], "seeds": 2}
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(text))
    source = StudySource(str(file))
    recipe = source.recipe()
    arms = [arm.counted(source) for arm in arms_of(source, study_of(recipe), recipe.variant_entries)]
    assert [arm.steps for arm in arms] == [6, 3]
