"""What is wrong with the data, or would fail when training ends, is told at its place before a folder is made."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.core.errors import DataError, RecipeError, RunError, TfkitError
from tfkit.recipe.load import load_recipe
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare
from tfkit.training.splits import first_examples

from ..sampling import looped
from .whole.draws import base, put
from .whole.material import write

ROWS = {"type": "json_lines", "file": "rows.jsonl"}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    write(folder)
    return folder


@pytest.fixture
def here(material: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with corpora is the working folder, so that paths are relative to it."""
    monkeypatch.chdir(material)
    return material


def recipe(objective: str, **changes: Any) -> dict[str, Any]:
    """A right recipe, with dotted keys (`__` for a dot) changed."""

    class First:
        def choice(self, choices: Any) -> Any:
            return choices[0]

    made = base(objective, First())  # type: ignore[arg-type]
    for key, value in changes.items():
        put(made, key.replace("__", "."), value)
    return made


def refused(source: dict[str, Any], kind: type[TfkitError] = DataError) -> str:
    """What `train` says of a recipe that `check` accepts; nothing is left behind."""
    loaded = load_recipe(source)
    with pytest.raises(kind) as caught:
        tfkit.train(loaded, out="out", progress=False)
    assert not Path("out").exists()
    return str(caught.value)


SAID: list[tuple[dict[str, Any], str]] = [
    # labels
    (
        recipe("classification", model__head={"type": "classifier", "num_classes": 2}),
        "labelled.txt:3: the label 'so' is one too many for the 2 classes of model.head; use num_classes: labels",
    ),
    (
        recipe("token_classification", model__head={"type": "token_classifier", "num_classes": 2}),
        "text.txt:1: the label 'I-thing' is one too many for the 2 classes of model.head; use num_classes: labels",
    ),
    (
        recipe("regression", data__train={"type": "labelled_text", "file": "mixed.txt"}),
        "mixed.txt:5: the label is 'none'; regression requires numbers",
    ),
    (
        recipe("regression", data__valid={"type": "labelled_text", "file": "mixed.txt"}),
        "mixed.txt:5: the label is 'none'; regression requires numbers",
    ),
    (
        recipe(
            "token_classification",
            data__valid={**ROWS, "file": "other.jsonl", "fields": {"text": "text", "tags": "tags"}},
        ),
        "other.jsonl:1: 1 tags for 4 words",
    ),
    # texts
    (
        recipe(
            "causal_lm",
            data__tokenizer={"type": "character", "special_tokens": {"unknown": None}},
            data__valid={"type": "text", "files": "odd.txt"},
        ),
        "odd.txt:6: 'ż' is not in the vocabulary, which has no unknown token",
    ),
    (
        recipe(
            "causal_lm",
            data__tokenizer={"type": "character", "special_tokens": {"unknown": None}},
            data__valid={"type": "text", "files": ["two.txt", "paragraphs.txt"], "unit": "paragraph"},
        ),
        "two.txt:1: '\\n' is not in the vocabulary, which has no unknown token",
    ),
    (
        recipe(
            "masked_lm",
            model__max_length=None,
            data__batch={"tokens": 30},
            data__train={"type": "text", "files": "long.txt"},
        ),
        "long.txt:13: 541 tokens exceed data.batch.tokens: 30; raise it, or set data.batch.length",
    ),
    (
        recipe("span", model__max_length=6, data__tokenizer={"type": "character"}),
        "rows.jsonl:1: a question of 3 tokens leaves no room for its context in a row of 6 tokens",
    ),
    (
        recipe("next_sentence", data__valid={"type": "text", "files": "two.txt"}),
        "two.txt: next_sentence requires at least three nonempty texts, got 2",
    ),
    (
        recipe("seq2seq", model__max_length=3),
        "target.txt: seq2seq: none of 12 examples can be used: 0 are empty, 12 longer than 3 tokens",
    ),
    # what is read when training ends only
    (
        recipe("regression", data__test={"type": "labelled_text", "file": "mixed.txt"}, train__metrics=["pearson"]),
        "mixed.txt:5: the label is 'none'; regression requires numbers",
    ),
    (
        recipe("seq2seq", data__test={"type": "parallel_text", "source": "text.txt", "target": "short.txt"}),
        "short.txt has 4; parallel files must have equal line counts",
    ),
    (
        recipe("classification", train__metrics=["accuracy", "pearson"]),
        "labelled.txt:1: pearson compares numbers, got 'good'",
    ),
    (
        recipe(
            "token_classification",
            data__train={"type": "tagged_text", "file": "text.txt", "tags": "plain_tags.txt"},
            data__valid={"type": "tagged_text", "file": "text.txt", "tags": "plain_tags.txt"},
            train__metrics=["entity_f1"],
        ),
        "text.txt:1: entity_f1 requires tags such as B-place, I-place and O, got 'X'",
    ),
]


@looped(("source", "said"), SAID)
def test_data_are_refused_at_their_file_and_line(here: Path, source: dict[str, Any], said: str) -> None:
    message = refused(source)
    assert said in message and str(here) in message, message


OF_TOKENIZERS: list[tuple[dict[str, Any], str]] = [
    (
        recipe("causal_lm", data__tokenizer={"type": "bpe", "vocab_size": 8}),
        "data.tokenizer: vocab_size: 8 is too small; ",
    ),
    (
        recipe("causal_lm", model__vocab_size=9),
        "model.vocab_size: 9 is less than the 29 tokens of the tokenizer; use vocab_size: tokenizer",
    ),
    (
        recipe("causal_lm", model__special_ids={"start": 99}),
        "model.special_ids.start: expected a token id below vocab_size 29, got 99",
    ),
    (
        recipe("causal_lm", generate__logits=[{"type": "banned", "tokens": "qq"}]),
        "generate.logits[0]: banned: 'qq' is not in the vocabulary",
    ),
    (
        recipe("causal_lm", generate__strategy={"type": "contrastive", "k": 400}),
        "generate.strategy: k: 400 exceeds the vocabulary of 29 tokens",
    ),
    (
        recipe("seq2seq", generate__logits=[{"type": "choices", "choices": ["漢字"]}]),
        "generate.logits[0]: choices: no allowed text can be written with this vocabulary",
    ),
]


@looped(("source", "said"), OF_TOKENIZERS)
def test_what_the_learned_tokens_decide_names_the_recipe_and_the_corpus(
    here: Path, source: dict[str, Any], said: str
) -> None:
    if "choices" in said:
        pytest.importorskip("llguidance")
    message = refused(source, RecipeError)
    assert said in message and f"(the tokenizer learned from {here}/text.txt" in message, message


def test_a_package_that_a_metric_needs_is_missed_before_training(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    without = lambda name: None if name == "sacrebleu" else found(name)  # noqa: E731
    monkeypatch.setattr("tfkit.training.metric.base.find_spec", without)
    source = recipe("seq2seq", train__metrics=["bleu"])
    assert "bleu needs the package sacrebleu: pip install" in refused(source, RecipeError)
    assert "train.metrics[0]: bleu needs" in str(first_examples(tfkit.load_recipe(source))[1][0])


class TestDrafts:
    """A run that drafts is opened before training, not when its drafts are wanted."""

    def test_another_vocabulary(self, here: Path) -> None:
        source = recipe("causal_lm", generate__strategy={"type": "speculative", "draft": "run"}, data__tokenizer="word")
        message = refused(source, RecipeError)
        assert f"generate.strategy: draft: {here}/run has a different vocabulary" in message

    def test_a_part_of_it_is_missing(self, here: Path) -> None:
        shutil.copytree("run", "broken")
        (here / "broken" / "model.safetensors").unlink()
        source = recipe("causal_lm", generate__strategy={"type": "speculative", "draft": "broken"})
        assert "broken/model.safetensors: is missing" in refused(source, RunError)

    def test_one_that_serves(self, here: Path) -> None:
        source = recipe("causal_lm", generate__strategy={"type": "speculative", "draft": "run"})
        source["data"]["tokenizer"] = {"type": "file", "path": "tokenizer.json"}
        prepare(load_recipe(source), Reporter(False))


@pytest.mark.full
def test_a_resumed_run_needs_its_corpora_alone(here: Path, tmp_path: Path) -> None:
    shutil.copy("tokenizer.json", tmp_path / "tokenizer.json")
    shutil.copytree("run", tmp_path / "first")
    source = recipe("causal_lm", train__init_from=str(tmp_path / "first"), model__head="language_model")
    source["data"]["tokenizer"] = {"type": "file", "path": str(tmp_path / "tokenizer.json")}
    tfkit.train(source, out=tmp_path / "run", progress=False)
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "tokenizer.json").unlink()
    source["train"]["steps"] = 2
    tfkit.train(source, out=tmp_path / "run", progress=False, resume=True)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
