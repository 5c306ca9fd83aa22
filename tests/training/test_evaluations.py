"""`train.evaluations` and `train.generation_rate`: what is measured more than once when training ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.small import small, trained
from tfkit.core.errors import RecipeError, UsageError
from tfkit.recipe.load import load_recipe
from tfkit.run import load_run

SHORTER = {"shorter": {"data.batch.length": 3}}


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


@pytest.mark.full
def test_an_evaluation_is_made_with_its_values_and_can_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("six five\n")
    corpus = {"type": "text", "files": str(tmp_path / "other.txt")}
    run = trained(small(tmp_path, evaluations={**SHORTER, "other": {"data.valid": corpus}}), tmp_path / "run")
    scores = written(run.folder)
    assert scores["valid"]["examples"] == scores["shorter"]["examples"] == 2 and scores["other"]["examples"] == 1
    assert len({scores[name]["loss"] for name in ("valid", "shorter", "other")}) == 3
    found = load_run(run.folder)
    assert found.evaluate("other")["loss"] == scores["other"]["loss"]
    assert load_run(run.folder, sets=["data.batch.length=3"]).evaluate()["loss"] == scores["shorter"]["loss"]
    assert found.evaluate()["loss"] == scores["valid"]["loss"], "the run's own data is as before"


@pytest.mark.full
def test_a_file_is_found_from_the_recipe_and_from_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = yaml.safe_load(small(tmp_path).resolved())
    data["model"]["vocab_size"] = "tokenizer"
    data["train"]["evaluations"] = {"other": {"data.valid": {"type": "text", "files": "other.txt"}}}
    (tmp_path / "other.txt").write_text("six five\n")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    run = trained(load_recipe(tmp_path / "mine.yaml"), tmp_path / "run")
    monkeypatch.chdir("/")
    assert load_run(run.folder).evaluate("other")["loss"] == written(run.folder)["other"]["loss"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": {"data.batch.lenght": 3}}, "train.evaluations.a: data.batch.lenght: unknown option"),
        ({"a": {"data.valid": None}}, "train.evaluations.a: no data.valid or data.test to evaluate on"),
        (
            {"a": {"model.d_model": 4}},
            "a: model.d_model: for a trained model, only keys of data, obj",
        ),
        (
            {"a": {"data": {"batch.size": 4}}},
            "a: data: is a whole section; write its keys with a dot",
        ),
        ({"a": {"data.tokenizer": "byte"}}, "a: data.tokenizer: the data.tokenizer of a trained model cannot change"),
        (
            {"a": {"objective.type": "seq2seq"}},
            "a: objective.type: the objective.type of a trained model cannot change",
        ),
        ({"a": {}}, "a: set at least one value by key"),
        ({"valid": {"data.batch.length": 3}}, "'valid' is not a valid name"),
        ({"generation": {"data.batch.length": 3}}, "'generation' is not a valid name"),
        ({"A b": {"data.batch.length": 3}}, "'A b' is not a valid name"),
    ],
)
def test_what_a_trained_model_cannot_be_evaluated_with_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as refused:
        small(tmp_path, evaluations=values)
    assert message in str(refused.value)


@pytest.mark.full
def test_set_does_not_change_what_the_weights_depend_on(tmp_path: Path) -> None:
    run = trained(small(tmp_path), tmp_path / "run")
    for text in ("data.tokenizer=byte", "objective=seq2seq", "train.steps=3"):
        with pytest.raises(UsageError, match="the run is already trained"):
            load_run(run.folder, sets=[text])


@pytest.mark.full
def test_the_generation_rate_is_measured_when_training_ends(tmp_path: Path) -> None:
    asked = {"batch": 2, "prompt": 4, "new": 3}
    run = trained(small(tmp_path, generation_rate=asked), tmp_path / "run")
    assert written(run.folder)["generation"]["tokens_per_second"] > 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("rate", "message"),
    [({"prompt": 17, "new": 1}, "need 17 positions"), ({"prompt": 2, "new": 16}, "need 17 positions")],
)
def test_a_rate_beyond_the_positions_is_refused_before_training(
    rate: dict[str, int], message: str, tmp_path: Path
) -> None:
    """A text that ends early would be counted as a whole one."""
    learned = {"model.position": "learned"}
    with pytest.raises(UsageError, match=message):
        trained(small(tmp_path, learned, generation_rate=rate), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    trained(small(tmp_path, learned, generation_rate={"prompt": 2, "new": 15}), tmp_path / "fits")


def test_a_rate_of_a_model_that_writes_no_text_is_refused(tmp_path: Path) -> None:
    encoder = {"model.type": "encoder", "model.head": "masked_lm", "objective": "masked_lm"}
    encoder |= {"data.tokenizer.special_tokens.mask": "<mask>"}
    small(tmp_path, encoder)
    with pytest.raises(RecipeError, match=r"train\.generation_rate: this model cannot generate text without a decoder"):
        small(tmp_path, encoder, generation_rate={"new": 2})


@pytest.mark.full
def test_evaluations_change_nothing_of_the_training(tmp_path: Path) -> None:
    plain = trained(small(tmp_path), tmp_path / "plain")
    more = trained(small(tmp_path, evaluations=SHORTER, generation_rate={"new": 2}), tmp_path / "more")
    assert (plain.folder / "model.safetensors").read_bytes() == (more.folder / "model.safetensors").read_bytes()
