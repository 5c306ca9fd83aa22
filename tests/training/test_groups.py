"""Scores of groups: the option `by` of every metric equals the metric over the examples of each value alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.cli.typed import typed
from tests.training.small import PAIR, RECIPE, trained
from tfkit.core.errors import DataError, RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import Recipe
from tfkit.studies.settings import measures_of, rises
from tfkit.training.metric import Metric

COLUMNS = ("from", "to", "direction", "place")
ROWS = [
    ("a red cat", "eine rote Katze", "en-de", "A, 1"),
    ("eine rote Katze", "a red cat", "de-en", "Bö.2"),
    ("a green dog", "ein grüner Hund", "en-de", "A, 1"),
    ("a red cat", "un chat rouge rouge", "en-fr", ""),
    ("ein grüner Hund", "a green dog", "de-en", "Bö.2"),
]
METRICS = ("exact_match", "chrf", "accuracy", "perplexity", "bits_per_character")


def recipe(folder: Path, rows: list[tuple[str, ...]] = ROWS, by: str | None = "direction", **fields: str) -> Recipe:
    file = folder / "rows.csv"
    with file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([COLUMNS, *rows])
    corpus = {"type": "csv", "file": str(file), "fields": {"source": "from", "target": "to", **fields}}
    metrics = [{"type": name, "by": by} for name in METRICS]
    train = {**RECIPE["train"], "steps": 2, "metrics": metrics}
    data = {**RECIPE["data"], "train": corpus, "valid": corpus, "batch": {"size": 2, "length": 8}}
    return tfkit.load_recipe({**RECIPE, "data": data, "train": train, "generate": {"max_new_tokens": 4}}, PAIR)


def metric(name: str, **options: Any) -> Metric:
    made: Metric = REGISTRY.get("metric", name).Config.model_validate(options).build()
    return made


@pytest.mark.full
@pytest.mark.parametrize(("fields", "by"), [({}, "direction"), ({"tag": "direction"}, "tag"), ({}, "place")])
def test_each_group_is_scored_by_itself(fields: dict[str, str], by: str, tmp_path: Path) -> None:
    run = trained(recipe(tmp_path, by=by, **fields), tmp_path / "run")
    saved = json.loads((run.folder / "evaluation.json").read_text())["valid"]
    column = COLUMNS.index("direction" if by == "tag" else by)
    names = {"A, 1": "A_1", "": "_"}
    for value in {row[column] for row in ROWS}:
        rows = [row for row in ROWS if row[column] == value]
        with (tmp_path / "some.csv").open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened).writerows([COLUMNS, *rows])
        alone = tfkit.load_run(run.folder, sets=[f"data.valid.file={tmp_path / 'some.csv'}"]).evaluate()
        for name in METRICS:
            assert saved[f"{name}.{names.get(value, value)}"] == pytest.approx(alone[name], rel=1e-6), (name, value)
    assert len(saved) == 2 + len(METRICS) * (1 + len({row[column] for row in ROWS}))
    name = sorted(saved)[-1]
    assert run.folder.name in typed("runs", tmp_path, "--where", f"valid.{name}={saved[name]}").stdout


def test_a_group_is_named_after_its_value() -> None:
    examples = [{"source": "a b c", "way": value} for value in ("x y", "Größe", "1.5", "+", "x y")]
    groups = metric("exact_match", by="way", by_length=[2]).groups(examples, ["source"])
    names = {"1.5": [2], "Größe": [1], "x_y": [0, 4], "_": [3], "3+": [0, 1, 2, 3, 4]}
    assert groups == {f"exact_match.{name}": rows for name, rows in names.items()}
    for values, message in (
        (["x y", "x_y"], "by: way: two scores would have the same name: exact_match.x_y"),
        (["1-2"], "by: way: two scores would have the same name: exact_match.1-2"),
        (map(str, range(51)), "by: way has 51 different values; the limit is 50"),
    ):
        with pytest.raises(DataError, match=message):
            metric("exact_match", by="way", by_length=[2]).groups([{"way": value} for value in values], [])


@pytest.mark.full
def test_groups_that_cannot_be_scored_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.csv:1: no column 'way' in the header; available: from, to, direction"):
        trained(recipe(tmp_path, by="way"), tmp_path / "run")
    many = [(*row[:2], str(number), "") for number, row in enumerate(ROWS * 11)]
    with pytest.raises(DataError, match=r"rows\.csv: exact_match: by: direction has 55 different values"):
        trained(recipe(tmp_path, many), tmp_path / "run")
    (tmp_path / "mine.yaml").write_text(recipe(tmp_path, by="way").resolved())
    assert "no column 'way'" in typed("check", tmp_path / "mine.yaml").stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_group_without_usable_examples_has_no_loss(tmp_path: Path) -> None:
    long = (" ".join("a" * 9), "a", "long", "")
    run = trained(recipe(tmp_path, [*ROWS, long]), tmp_path / "run")
    scores = json.loads((run.folder / "evaluation.json").read_text())["valid"]
    assert "perplexity.en-de" in scores and "perplexity.long" not in scores and scores["exact_match.long"] == 0


@pytest.mark.full
def test_a_study_measures_groups(tmp_path: Path) -> None:
    known = recipe(tmp_path)
    assert "valid.perplexity.*" in measures_of(known.data, known.train)
    assert rises("valid.chrf.en-de", known.train) and not rises("valid.perplexity.en-de", known.train)
    study = {"compare": ["wide"], "measure": ["valid.chrf.en-de"]}
    values = {"extends": str(tmp_path / "mine.yaml"), "variants": {"wide": {"model.d_model": 16}}, "study": study}
    (tmp_path / "mine.yaml").write_text(known.resolved())
    assert tfkit.load_recipe(values)
    for wrong in ("valid.chrf.*", "valid.loss.en-de"):
        with pytest.raises(RecipeError, match=r"study\.measure\[0\].*is not measured"):
            tfkit.load_recipe({**values, "study": {**study, "measure": [wrong]}})
