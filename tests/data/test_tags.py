"""Tags from a column: one token before the source, learned from train, and refused where training has none."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.cli.typed import typed
from tests.training.small import ENCODER, PAIR, RECIPE, trained
from tfkit.core.errors import DataError, RecipeError, TfkitError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.training.objective import Objective
from tfkit.training.splits import Split

COLUMNS = ("from", "to", "direction")
ROWS = [
    ("a red cat", "eine rote Katze", "en-de"),
    ("eine rote Katze", "a red cat", "de-en"),
    ("a red cat", "un chat rouge", "<2fr>"),
    ("a green dog", "ein grüner Hund", "en-de"),
]
TOKENS = ["<2fr>", "<de-en>", "<en-de>"]
FIELDS = {"source": "from", "target": "to", "tag": "direction"}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "character": {}, "word": {}, "wordpiece": {"vocab_size": 60}, "unigram": {"vocab_size": 40},
    "bpe": {"vocab_size": 300, "byte_level": True},
}  # fmt: skip
HEAD = {"type": "classifier", "num_classes": "labels"}
CLASSES = {"model.type": "encoder", "model.head": HEAD, "objective": "classification"}


def written(folder: Path, name: str, rows: list[tuple[str, ...]]) -> str:
    file = folder / name
    records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    if name.endswith(".jsonl"):
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    elif name.endswith(".parquet"):
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    else:
        with file.open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened).writerows([COLUMNS, *rows])
    return str(file)


def recipe(folder: Path, valid: list[tuple[str, ...]] = ROWS, overrides: Any = None, **fields: str) -> tfkit.Recipe:
    corpora = {
        split: {"type": "csv", "file": written(folder, f"{split}.csv", rows), "fields": fields or FIELDS}
        for split, rows in (("train", ROWS), ("valid", valid))
    }
    train = {**RECIPE["train"], "metrics": ["exact_match"]}
    values = {**RECIPE, "generate": {"max_new_tokens": 4}, "data": {**RECIPE["data"], **corpora}, "train": train}
    return tfkit.load_recipe(values, PAIR if overrides is None else overrides)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tag_is_one_token_and_changes_no_other(name: str, tmp_path: Path) -> None:
    config = REGISTRY.get("tokenizer", name).Config.model_validate(TOKENIZERS[name])
    plain: Tokenizer = config.build().fit([text for *texts, _ in ROWS for text in texts])
    tagged = plain.with_tags(TOKENS)
    for found in (tagged, Tokenizer.from_json(tagged.to_json())):
        assert found.tags == tuple(TOKENS) and found.vocab_size == plain.vocab_size + 3
        for number, tag in enumerate(TOKENS):
            text = [plain.vocab_size + number, *plain.encode("a red cat")]
            assert found.encode(f"{tag} a red cat") == found.encode(f"{tag}a red cat") == text
    assert tagged.with_tags(["<x>"]).tags == ("<x>",), "tags are those of the last training"
    with pytest.raises(DataError, match="the tag </s> is a special token"):
        plain.with_tags(["</s>"])


@pytest.mark.full
def test_every_corpus_with_columns_writes_the_tag(tmp_path: Path) -> None:
    expected = [
        {"source": f"{tag} {source}", "target": target, "tag": direction}
        for (source, target, direction), tag in zip(ROWS, ["<en-de>", "<de-en>", "<2fr>", "<en-de>"], strict=True)
    ]
    for kind, name in (("csv", "a.csv"), ("json_lines", "a.jsonl"), ("parquet", "data/a.parquet")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        for type_, options in ((kind, {"file": written(tmp_path, name, ROWS)}), ("datasets", {"folder": "data"})):
            if type_ == "datasets" and kind != "parquet":
                continue
            options |= {"folder": str(tmp_path / "data")} if type_ == "datasets" else {}
            corpus = REGISTRY.get("corpus", type_).Config.model_validate({**options, "fields": FIELDS}).build()
            assert corpus.examples() == expected, type_
    for bad in ("en de", "--"):
        file = written(tmp_path, "bad.csv", [*ROWS, ("a", "b", bad)])
        corpus = REGISTRY.get("corpus", "csv").Config.model_validate({"file": file, "fields": FIELDS}).build()
        with pytest.raises(DataError, match=rf"bad\.csv:6: the tag '{bad}' is not a word"):
            corpus.examples()


def split_of(loaded: tfkit.Recipe, sharded: bool = False) -> Split:
    assert loaded.data is not None and loaded.objective is not None
    objective: Objective = loaded.objective.build()
    return Split(loaded.data.train, objective, sharded)


@pytest.mark.full
def test_tokenizers_learn_the_texts_without_tags(tmp_path: Path) -> None:
    with_tag, without = (
        list(split_of(recipe(tmp_path, **fields)).texts(["source", "target"]))
        for fields in (FIELDS, {"source": "from", "target": "to"})
    )
    assert with_tag == without
    assert split_of(recipe(tmp_path)).tags() == TOKENS


@pytest.mark.full
def test_a_run_reads_its_tags_and_refuses_others(tmp_path: Path) -> None:
    run = trained(recipe(tmp_path), tmp_path / "run")
    assert run.tokenizer.tags == tuple(TOKENS) and set(TOKENS) <= set(run.tokenizer.backend.get_vocab())
    again = tfkit.load_run(run.folder)
    assert again.generate("<2fr> a red cat") == run.generate(["<2fr> a red cat"])
    for text in ("a red cat", "<en-fr> a red cat", ""):
        with pytest.raises(UsageError, match=r"does not begin with a tag from training: <2fr>, <de-en>, <en-de>"):
            again.generate(text)
    file = written(tmp_path, "new.csv", ROWS[:2])
    found = typed("generate", run.folder, "--input", file, "--field", "from", "--max-new-tokens", 4)
    answers = again.generate(["<en-de> a red cat", "<de-en> eine rote Katze"], max_new_tokens=4)
    assert [json.loads(line)["text"] for line in found.stdout.splitlines()] == answers
    found = typed(
        "generate", run.folder, "--input", written(tmp_path, "x.jsonl", [("a", "b", "xx")]), "--field", "from"
    )
    assert "x.jsonl:1: the prompt cannot be read: '<xx> a' does not begin with a tag" in found.stderr
    assert 'source "<en-de> a red cat"' in typed("check", run.folder / "recipe.yaml").stdout


@pytest.mark.full
def test_an_unknown_tag_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    unseen = recipe(tmp_path, [*ROWS, ("un chat", "a cat", "fr-en")])
    message = r"valid\.csv:6: .* does not begin with a tag from training: <2fr>, <de-en>, <en-de>"
    with pytest.raises(DataError, match=message):
        trained(unseen, tmp_path / "run")
    shards = {**PAIR, "data.shards": True}
    with pytest.raises(DataError, match=message):
        trained(recipe(tmp_path, [*ROWS, ("un chat", "a cat", "fr-en")], shards), tmp_path / "run")
    one, other = (trained(recipe(tmp_path, overrides=each), tmp_path / str(len(each))) for each in (PAIR, shards))
    assert (one.folder / "model.safetensors").read_bytes() == (other.folder / "model.safetensors").read_bytes()


@pytest.mark.full
def test_the_source_has_the_tag_where_each_side_has_a_tokenizer(tmp_path: Path) -> None:
    sides = {**PAIR, "model.embedding.shared": False, "data.tokenizer": {"source": "word", "target": "character"}}
    run = trained(recipe(tmp_path, overrides=sides), tmp_path / "run")
    assert run.source_tokenizer.tags == tuple(TOKENS) and not run.tokenizer.tags


@pytest.mark.full
def test_other_objectives_read_tags_or_refuse_them(tmp_path: Path) -> None:
    label = {"text": "from", "label": "to", "tag": "direction"}
    run = trained(recipe(tmp_path, overrides=CLASSES, **label), tmp_path / "classes")
    assert run.predict("<en-de> a red cat")[0]["label"] in run.labels
    with pytest.raises(TfkitError, match="'a red cat' does not begin with a tag from training"):
        run.predict("a red cat")
    text = {"text": "from", "tag": "direction"}
    run = trained(recipe(tmp_path, overrides={"train.metrics": []}, **text), tmp_path / "text")
    assert run.generate("<en-de> a", max_new_tokens=2) and run.tokenizer.tags
    tags = {"text": "from", "tags": "to", "tag": "direction"}
    words = {**CLASSES, "model.head.type": "token_classifier", "objective": "token_classification"}
    for objective, overrides, fields in (
        ("chat", {"objective": "chat"}, FIELDS),
        ("token_classification", words, tags),
        ("span", {**ENCODER, "model.head": "span", "objective": "span"}, FIELDS),
    ):
        with pytest.raises(RecipeError, match=rf"data\.train\.fields\.tag: '{objective}' does not read a tag"):
            recipe(tmp_path, overrides=overrides, **fields)
    with pytest.raises(RecipeError, match=r"data\.valid\.fields\.tag: data\.train has no tag; remove it here"):
        recipe(tmp_path, overrides={**PAIR, "data.valid.fields.tag": "direction"}, source="from", target="to")
