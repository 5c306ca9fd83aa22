"""Scores by length, and the split `longer`: what they are called, what they say, and where they go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.small import RECIPE, trained
from tfkit.core.errors import DataError, RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus.reasoning import Grammar
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.study import measures_of, rises
from tfkit.training.metric import Metric, as_compared, length_of


def metric(name: str, **options: Any) -> Metric:
    made: Metric = REGISTRY.get("metric", name).Config.model_validate(options).build()
    return made


def recipe(**changed: Any) -> Recipe:
    probe = {"type": "copying", "count": 40, "symbols": 4, "length": 5, "longest": 8}
    data = {split: {**probe, "split": split, "count": 20} for split in ("train", "valid", "test", "longer")}
    train = {**RECIPE["train"], "metrics": [{"type": "exact_match", "by_length": [3, 4, 6]}], "steps": 2}
    whole = {**RECIPE, "objective": "completion", "train": train, "generate": {"max_new_tokens": 4}}
    return load_recipe(
        {**whole, "model": {**RECIPE["model"], "max_length": 40}}
        | {"data": {"tokenizer": "word", "batch": {"size": 4}, **data, **changed}}
    )


def test_each_range_is_scored_by_itself() -> None:
    outputs, references = ["a", "a", "b", "b", "c"], ["a", "b", "b", "b", "d"]
    scores = metric("exact_match", by_length=[1, 4, 5]).by_length(outputs, references, [1, 2, 4, 5, 9])
    assert scores == {"exact_match.1": 100, "exact_match.2-4": 50, "exact_match.5": 100, "exact_match.6+": 0}


def test_a_range_without_examples_has_no_score() -> None:
    scores = metric("exact_match", by_length=[4, 8]).by_length(["a"], ["a"], [6])
    assert scores == {"exact_match.5-8": 100}
    assert metric("exact_match").by_length(["a"], ["a"], [6]) == {}


def test_a_length_is_what_the_corpus_says_or_the_words_that_are_read() -> None:
    assert length_of({"source": "a b c", "target": "d", "length": "7"}, ["source"]) == 7
    assert length_of({"source": "a b c", "target": "d"}, ["source"]) == 3
    assert length_of({"first": "a b", "second": "c"}, ["first", "second"]) == 3


@pytest.mark.parametrize("bounds", [[4, 4], [8, 4], [0]])
def test_bounds_that_make_no_ranges_are_refused(bounds: list[int]) -> None:
    train = {**RECIPE["train"], "metrics": [{"type": "exact_match", "by_length": bounds}]}
    with pytest.raises(RecipeError, match=r"train\.metrics\[0\]\.by_length.*(ascending order, got|greater than|1)"):
        load_recipe({**RECIPE, "train": train})


@pytest.mark.full
def test_a_run_measures_longer_and_each_length_when_training_ends(tmp_path: Path) -> None:
    run = trained(recipe(), tmp_path / "run")
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
    made = recipe()
    assert made.data is not None
    found = measures_of(made.data, made.train)
    wanted = {f"{split}.exact_match{end}" for split in ("test", "longer") for end in ("", ".1-3", ".4", ".5-6", ".7+")}
    assert wanted | {"test.loss", "longer.loss", "valid.loss"} == set(found)
    assert all(rises(name, made.train) == ("exact_match" in name) for name in found)


def test_longer_alone_is_measured_beside_valid() -> None:
    made = recipe(test=None)
    assert made.data is not None and made.data.measured() == ["valid", "longer"]
    assert not made.warnings
    with pytest.raises(RecipeError, match=r"data\.longer: 'completion' needs the fields source, target"):
        recipe(longer="docstrings")


def test_what_longer_lacks_is_told_before_training(tmp_path: Path) -> None:
    few = recipe(longer={"type": "copying", "split": "longer", "symbols": 1, "longest": 14})
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
