"""One file serves `check`, `train`, `--resume` and `evaluate` by `data.split`; `check` tells what is in two splits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tfkit
from tests.training.small import RECIPE
from tfkit.core.errors import RunError
from tfkit.data.corpus import Corpus
from tfkit.training import splits
from tfkit.training.splits import Split, encoded_corpus, leaks

from .typed import typed

WORDS = ("one", "two", "three", "four", "five")
ROWS = [(f"x{n}", f"s{n % 8}", f"{WORDS[n % 5]} {n}") for n in range(48)]
TRAIN: dict[str, Any] = {"type": "csv", "file": "rows.csv", "fields": {"text": "text"}}
FEW: dict[str, Any] = {"keep": "last", "steps": 4, "metrics": ["perplexity"]}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    written("rows.csv", ROWS)


def written(name: str, rows: list[tuple[str, str, str]]) -> None:
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows([("id", "subject", "text"), *rows])


def recipe(split: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    kept = {"tokenizer": "word", "batch": {"size": 4}, "train": TRAIN, **data}
    return {**RECIPE, "train": {**RECIPE["train"], **FEW}, "data": kept | ({"split": split} if split else {})}


def check(split: dict[str, Any] | None = None, *options: str, **data: Any) -> Any:
    Path("mine.yaml").write_text(yaml.safe_dump(recipe(split, **data), sort_keys=False))
    return typed("check", "mine.yaml", *options, columns=300)


def test_a_run_has_its_splits_and_evaluates_on_them(tmp_path: Path) -> None:
    loaded = tfkit.load_recipe(recipe({"by": "subject", "valid": 0.25, "test": 0.25}))
    run = tfkit.train(loaded, out="run", progress=False)
    lines = Path("run/splits.csv").read_text().splitlines()
    assert lines[0] == "id,split" and "  splits.csv\n" in Path("run/SHA256SUMS").read_text()
    parts = dict(line.split(",") for line in lines[1:])
    assert list(parts) == [row[0] for row in ROWS]
    subjects = {(parts[name], subject) for name, subject, _ in ROWS}
    assert len(subjects) == 8 and sorted(part for part, _ in subjects) == ["test"] * 2 + ["train"] * 4 + ["valid"] * 2
    held = [text for name, _, text in ROWS if parts[name] == "test"]
    Path("held.txt").write_text("\n".join(held) + "\n")
    alone = tfkit.load_run("run").evaluate()
    same = typed("evaluate", "run", "--set", "data.split=none", "--set", "data.test={type: text, files: held.txt}")
    assert f"loss: {alone['loss']:.6g}" in same.stdout and run.evaluate() == alone
    assert typed("train", "run/resolved.yaml", "--out", "run", "--resume", "--set", "train.steps=6").exit_code == 0
    written("rows.csv", [*ROWS, ("x48", "s9", "one 48")])
    with pytest.raises(RunError, match=r"splits\.csv: data\.split divides the data differently now"):
        tfkit.load_run("run").evaluate()
    resumed = typed("train", "run/resolved.yaml", "--out", "run", "--resume", "--set", "train.steps=8")
    assert (
        resumed.exit_code != 0
        and "rows.csv has changed since this run started (data.train, data.valid)" in resumed.stderr
    )


@pytest.mark.full
def test_token_shards_and_labels_are_those_of_the_split() -> None:
    loaded = tfkit.load_recipe(recipe({"by": "subject", "valid": 0.25}))
    assert loaded.data is not None and loaded.objective is not None
    tokenizer = tfkit.train(loaded, out="run", progress=False).tokenizer
    for _, config in loaded.data.splits():
        corpus: Corpus = config.build()
        found = encoded_corpus(config, corpus, {"text": tokenizer})["text"]
        expected = [tokenizer.encode(example["text"]) for example in corpus.examples()]
        assert [np.asarray(found[place]).tolist() for place in range(len(found))] == expected
        assert len(Split(config, loaded.objective.build()).examples) == len(expected)


@pytest.mark.full
def test_running_text_is_cut_by_place_under_an_objective_that_joins() -> None:
    Path("text.txt").write_text("".join(f"line {number}\n" for number in range(40)))
    train = {"type": "text", "files": "text.txt"}
    for join, by_place in ((True, True), (False, False)):
        data = tfkit.load_recipe(
            {**recipe({"valid": 0.1}, train=train), "objective": {"type": "causal_lm", "join": join}}
        )
        assert data.data is not None and data.data.split is not None and data.data.split.by_place is by_place
        last = data.data.splits()[1][1].build().examples()
        assert ([one["text"] for one in last][-1] == "line 39") or not by_place
        assert "by_place" in data.resolved() and len(last) == 4


@pytest.mark.full
def test_contradictions_of_data_split_name_both_places() -> None:
    Path("text.txt").write_text("one two\n" * 9)
    text = {"type": "text", "files": "text.txt"}
    for split, data, words in (
        ({"valid": 0.1}, {"valid": TRAIN}, r"mine.yaml:38:3: data.valid: conflicts with data.split (at mine.yaml:"),
        ({"valid": 0.1}, {"test": TRAIN}, "data.test: conflicts with data.split (at mine.yaml:"),
        (
            {"valid": 0.1},
            {"train": {"type": "docstrings"}},
            "'docstrings' has splits of its own, which data.split (at mine",
        ),
        ({"valid": 0.6, "test": 0.4}, {}, "data.split: valid: 0.6 and test: 0.4 leave nothing for train"),
        (
            {"valid": 1.5},
            {},
            "data.split.valid: must be a share between 0 and 1, a number of examples from 1, or a file",
        ),
        ({"seed": 1}, {}, "data.split: set valid, test or both"),
        ({"valid": 0.1, "by": "id", "by_place": True}, {}, "data.split.by: has no effect on a division by place"),
        ({"valid": "ids.txt", "seed": 3}, {}, "data.split.seed: has no effect without shares to draw"),
        ({"valid": "ids.txt"}, {}, "data.split.valid: no such file:"),
        ({"valid": 0.1, "by": "animal"}, {}, "data.train: "),
        ({"valid": 0.01}, {}, "valid would be empty"),
    ):
        result = check(split, **data)
        assert result.exit_code == 2 and words.removeprefix("mine.yaml:38:3: ") in result.stderr, (split, result.stderr)
    joined = {**recipe({"valid": 0.1, "stratify": "text"}, train=text), "objective": "causal_lm"}
    Path("joined.yaml").write_text(yaml.safe_dump(joined))
    assert "data.split.stratify: has no effect on a division by place" in typed("check", "joined.yaml").stderr
    assert check({"valid": 0.1}, longer=TRAIN).exit_code == 0


@pytest.mark.full
def test_what_is_in_two_splits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted against the files themselves."""
    written("valid.csv", [("y0", "s1", "one 0"), ("y1", "t1", "new 1"), *ROWS[10:14], ROWS[10]])
    valid = {**TRAIN, "file": "valid.csv"}
    result = check({"by": "subject"}, valid=valid)
    assert result.exit_code == 0 and result.stdout.startswith("mine.yaml: ok")
    assert "data.valid: 6 examples of valid are also in train: " in result.stderr
    assert all(f"valid.csv:{line}" in result.stderr for line in (2, 4, 5)) and "valid.csv:5, ..." in result.stderr
    assert "data.valid: 5 groups of valid are also in train: 's1', 's2', 's3', ..." in result.stderr
    assert "groups" not in check(valid=valid).stderr and "6 examples" in check(valid=valid).stderr
    assert not check({"by": "subject", "valid": 0.25}).stderr
    written("twice.csv", [*ROWS, *((f"z{n}", "s9", text) for n, (_, _, text) in enumerate(ROWS))])
    told = check({"by": "subject", "valid": 12}, train={**TRAIN, "file": "twice.csv"}).stderr
    assert "examples of valid are also in train" in told and "group" not in told
    assert "1 example of longer is also in " in check({"valid": 4}, longer={**TRAIN, "where": "id=x0"}).stderr
    monkeypatch.setattr(splits, "COMPARED", 100)
    large = check(valid=valid).stderr
    assert large.count("is not searched for examples of other splits, as it has") == 2
    assert check({"valid": 4}).stderr.count("is not searched for examples") == 1


@pytest.mark.full
def test_joined_text_and_generated_examples_are_not_compared() -> None:
    Path("text.txt").write_text("one two three\n" * 40)
    text = {"type": "text", "files": "text.txt"}
    joined = {**recipe(train=text, valid=text), "objective": "causal_lm"}
    assert not list(leaks(tfkit.load_recipe(joined)))
    assert len(list(leaks(tfkit.load_recipe(recipe(train=text, valid=text))))) == 1
    drawn = {"type": "copying", "count": 30}
    values = {"train": drawn, "valid": drawn, "tokenizer": "word"}
    pairs = {**RECIPE, "model": {**RECIPE["model"], "type": "encoder_decoder"}, "data": values, "objective": "seq2seq"}
    assert not list(leaks(tfkit.load_recipe(pairs)))
