"""What is measured more than once when training ends: train.evaluations, scores by length, the split longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.small import ENCODER, RECIPE, small, trained
from tfkit.core.errors import DataError, RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus.reasoning import Grammar
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import load_run
from tfkit.studies.settings import measures_of, rises
from tfkit.training.metric import Metric, as_compared, length_of

from ..sampling import looped

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


@looped(
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
    small(tmp_path, ENCODER)
    with pytest.raises(RecipeError, match=r"train\.generation_rate: this model cannot generate text without a decoder"):
        small(tmp_path, ENCODER, generation_rate={"new": 2})


@pytest.mark.full
def test_evaluations_change_nothing_of_the_training(tmp_path: Path) -> None:
    plain = trained(small(tmp_path), tmp_path / "plain")
    more = trained(small(tmp_path, evaluations=SHORTER, generation_rate={"new": 2}), tmp_path / "more")
    assert (plain.folder / "model.safetensors").read_bytes() == (more.folder / "model.safetensors").read_bytes()


# --- scores by length


def metric(name: str, **options: Any) -> Metric:
    made: Metric = REGISTRY.get("metric", name).Config.model_validate(options).build()
    return made


def probe_recipe(**changed: Any) -> Recipe:
    probe = {"type": "copying", "count": 40, "symbols": 4, "length": 5, "longest": 8}
    data = {split: {**probe, "split": split, "count": 20} for split in ("train", "valid", "test", "longer")}
    train = {**RECIPE["train"], "metrics": [{"type": "exact_match", "by_length": [3, 4, 6]}], "steps": 2}
    whole = {**RECIPE, "objective": "completion", "train": train, "generate": {"max_new_tokens": 4}}
    return load_recipe(
        {**whole, "model": {**RECIPE["model"], "max_length": 40}}
        | {"data": {"tokenizer": "word", "batch": {"size": 4}, **data, **changed}}
    )


def test_each_range_is_scored_by_itself() -> None:
    examples = [{"source": "a " * length} for length in (1, 2, 4, 5, 9)]
    groups = metric("exact_match", by_length=[1, 4, 5]).groups(examples, ["source"])
    assert groups == {"exact_match.1": [0], "exact_match.2-4": [1, 2], "exact_match.5": [3], "exact_match.6+": [4]}


def test_a_range_without_examples_has_no_score() -> None:
    groups = metric("exact_match", by_length=[4, 8]).groups([{"length": "6"}], [])
    assert groups == {"exact_match.5-8": [0]}
    assert metric("exact_match").groups([{"length": "6"}], []) == {}


def test_a_length_is_what_the_corpus_says_or_the_words_that_are_read() -> None:
    assert length_of({"source": "a b c", "target": "d", "length": "7"}, ["source"]) == 7
    assert length_of({"source": "a b c", "target": "d"}, ["source"]) == 3
    assert length_of({"first": "a b", "second": "c"}, ["first", "second"]) == 3


@looped("bounds", [[4, 4], [8, 4], [0]])
def test_bounds_that_make_no_ranges_are_refused(bounds: list[int]) -> None:
    train = {**RECIPE["train"], "metrics": [{"type": "exact_match", "by_length": bounds}]}
    with pytest.raises(RecipeError, match=r"train\.metrics\[0\]\.by_length.*(ascending order, got|greater than|1)"):
        load_recipe({**RECIPE, "train": train})


@pytest.mark.full
def test_a_run_measures_longer_and_each_length_when_training_ends(tmp_path: Path) -> None:
    run = trained(probe_recipe(), tmp_path / "run")
    written = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert set(written) == {"test", "longer"}
    names = {"examples", "loss", "exact_match"}
    assert set(written["test"]) == names | {"exact_match.1-3", "exact_match.4", "exact_match.5-6"}
    assert set(written["longer"]) == names | {"exact_match.5-6", "exact_match.7+"}
    again = run.evaluate("longer")
    assert again == {name: value for name, value in written["longer"].items() if name != "examples"}
    with pytest.raises(UsageError, match="this run has no split 'other'; it has train, valid, test, longer"):
        run.evaluate("other")


def test_a_study_measures_them_by_name() -> None:
    made = probe_recipe()
    assert made.data is not None
    found = measures_of(made.data, made.train)
    wanted = {f"{split}.exact_match{end}" for split in ("test", "longer") for end in ("", ".1-3", ".4", ".5-6", ".7+")}
    assert wanted | {"test.loss", "longer.loss", "valid.loss"} == set(found)
    assert all(rises(name, made.train) == ("exact_match" in name) for name in found)


def test_longer_alone_is_measured_beside_valid() -> None:
    made = probe_recipe(test=None)
    assert made.data is not None and made.data.measured() == ["valid", "longer"]
    assert not made.warnings
    with pytest.raises(RecipeError, match=r"data\.longer: 'completion' needs the fields source, target"):
        probe_recipe(longer="docstrings")


def test_what_longer_lacks_is_told_before_training(tmp_path: Path) -> None:
    few = probe_recipe(longer={"type": "copying", "split": "longer", "symbols": 1, "longest": 14})
    with pytest.raises(DataError, match="longer has only 2 distinct pairs"):
        trained(few, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_grammatical_reads_the_source_with_what_is_written() -> None:
    grammar, made = Grammar(3, 3, 3, 1), metric("grammatical")
    sentence = REGISTRY.get("corpus", "lano").Config.model_validate({"count": 1}).build().examples()[0]
    right = as_compared(made, sentence, sentence["target"])
    assert right == f"{sentence['source']} {sentence['target']}" and grammar.derives(right.split())
    assert made.score([right, right + " na na na", right], [right] * 3) == pytest.approx(200 / 3)
    assert as_compared(metric("exact_match"), sentence, "x") == "x"
    with pytest.raises(UsageError, match="is not a sentence of the grammar of grammatical; use the options"):
        metric("grammatical", grammar_seed=9).check_reference(right)
