"""Runs that say something about a text: their labels, what they predict, their vectors, and where they start from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tfkit
from tests.cli.typed import refused, typed
from tests.training.small import RECIPE
from tfkit.core.errors import RecipeError, RunError, TfkitWarning, UsageError
from tfkit.run import Run, load_run, train

WORDS = ("fine", "great", "poor", "dull")
REVIEWS = "".join(f"{'against' if word in WORDS[2:] else 'for'} a {word} film\n" for word in WORDS * 8)
TEXT, TAGS = "play some jazz in berlin\nplay rock\n" * 8, "O O B-genre O B-place\nO B-genre\n" * 8


def base(folder: Path, head: Any, objective: Any, corpus: dict[str, Any], **model: Any) -> dict[str, Any]:
    data = {"tokenizer": {"type": "word", "special_tokens": {"mask": "<mask>"}}, "train": corpus, "valid": corpus}
    layer = {key: value for key, value in RECIPE["model"]["layer"].items() if key != "dropout"}
    part = {"type": "encoder", "d_model": 16, "max_length": 12, "position": "learned", "layer": layer, "head": head}
    train = {"steps": 40, "schedule": {"type": "constant", "lr": 0.02}, "optimizer": "adamw", "samples": 5}
    every = {"evaluate_every": 20, "checkpoint_every": 20}
    settings = {key: value for key, value in RECIPE["train"].items() if key != "metrics"} | train | every
    recipe = {**RECIPE, "data": {**data, "batch": {"size": 16}}, "objective": objective, "train": settings}
    return {**recipe, "model": {**RECIPE["model"], **part, **model}}


def classes(folder: Path, **model: Any) -> dict[str, Any]:
    (folder / "reviews.txt").write_text(REVIEWS)
    head = {"type": "classifier", "num_classes": "labels", "pool": "mean", "activation": "tanh"}
    return base(folder, head, "classification", {"type": "labelled_text", "file": str(folder / "reviews.txt")}, **model)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("classes")
    return train(classes(folder), out=folder / "run", progress=False)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tags")
    (folder / "text").write_text(TEXT)
    (folder / "tags").write_text(TAGS)
    corpus = {"type": "tagged_text", "file": str(folder / "text"), "tags": str(folder / "tags")}
    head = {"type": "token_classifier", "num_classes": "labels"}
    return train(base(folder, head, "token_classification", corpus), out=folder / "run", progress=False)


def command(*arguments: Any, **options: Any) -> str:
    done = typed(*arguments, **options)
    assert done.exit_code == 0, done.output
    return done.stdout


class TestLabels:
    @pytest.mark.full
    def test_they_are_saved_and_move_with_the_run(self, classifier: Run, tmp_path: Path) -> None:
        assert json.loads((classifier.folder / "labels.json").read_text()) == ["against", "for"]
        assert "num_classes: 2" in (classifier.folder / "resolved.yaml").read_text()
        shutil.copytree(classifier.folder, tmp_path / "moved")
        moved = load_run(tmp_path / "moved")
        assert moved.predict("a great film") == classifier.predict("a great film")
        assert moved.blueprint == classifier.blueprint and moved.labels == ("against", "for")

    @pytest.mark.full
    def test_a_run_is_resumed_with_its_labels(self, classifier: Run, tmp_path: Path) -> None:
        shutil.copytree(classifier.folder, tmp_path / "run")
        (tmp_path / "run" / "labels.json").write_text('["for", "against"]')
        source = classes(tmp_path)
        source["data"]["train"]["file"] = source["data"]["valid"]["file"] = str(
            classifier.folder.parent / "reviews.txt"
        )
        source["train"]["steps"] = 42
        with pytest.raises(RunError, match=r"labels\.json: has changed since it was written.*--accept-changes"):
            train(source, out=tmp_path / "run", resume=True, progress=False)
        with pytest.warns(TfkitWarning, match=r"labels\.json: recorded as it is now"):
            resumed = train(source, out=tmp_path / "run", resume=True, progress=False, accept_changes=True)
        assert resumed.labels == ("for", "against")

    def test_a_broken_file_is_named(self, classifier: Run, tmp_path: Path) -> None:
        shutil.copytree(classifier.folder, tmp_path / "run")
        (tmp_path / "run" / "SHA256SUMS").unlink()
        for text in ("{", '{"a": 1}', "[1]", '["a", "a"]'):
            (tmp_path / "run" / "labels.json").write_text(text)
            with pytest.raises(RunError, match=r"labels\.json: "):
                load_run(tmp_path / "run").predict("a film")

    def test_a_number_may_be_said(self, tmp_path: Path) -> None:
        source = classes(tmp_path)
        source["model"]["head"]["num_classes"] = 5
        source["train"]["steps"] = 1
        said = train(source, out=tmp_path / "run", progress=False).predict("a film")[0]
        assert set(said["labels"]) == {"against", "for", "2", "3", "4"}

    def test_labels_of_nothing_are_refused(self, tmp_path: Path) -> None:
        source = classes(tmp_path)
        with pytest.raises(UsageError, match="depends on an unread corpus"):
            source["model"]["vocab_size"] = 99
            tfkit.build(source)
        del source["objective"]
        with pytest.raises(
            RecipeError, match=r"model\.head\.num_classes: labels are collected .* there is no objective"
        ):
            tfkit.load_recipe(source)
        source = classes(tmp_path, heads={"other": {"type": "classifier", "num_classes": "labels"}})
        with pytest.raises(RecipeError, match=r"model\.heads\.other\.num_classes: only model\.head"):
            tfkit.load_recipe(source)

    def test_a_head_by_name(self, tmp_path: Path) -> None:
        named = {"kind": {"type": "classifier", "num_classes": "labels"}}
        source = classes(tmp_path, heads=named)
        source["model"]["head"] = {"type": "masked_lm", "tied": True}
        source["objective"] = {"type": "classification", "head": "kind"}
        source["train"]["steps"] = 2
        run = train(source, out=tmp_path / "run", progress=False)
        assert run.predict("a dull film")[0]["label"] in ("for", "against")
        source["objective"] = {"type": "classification", "head": "kin"}
        with pytest.raises(RecipeError, match="needs a head 'kin' of type classifier; the model has no head 'kin'"):
            tfkit.load_recipe(source)


class TestPredict:
    def test_labels(self, classifier: Run) -> None:
        said = classifier.predict([f"a {word} film" for word in WORDS])
        assert [one["label"] for one in said] == ["for", "for", "against", "against"]
        (alone,) = classifier.predict("a dull film")
        assert classifier.predict([]) == [] and alone["labels"] == pytest.approx(said[3]["labels"], abs=1e-6)
        scores = classifier.evaluate("valid")
        assert set(scores) == {"loss", "accuracy", "macro_f1"} and scores["accuracy"] == 100

    @pytest.mark.full
    def test_tags(self, tagger: Run) -> None:
        said = tagger.predict("play some rock")[0]
        assert said["words"] == ["play", "some", "rock"] and said["tags"][0] == "O"
        scores = tagger.evaluate("valid")
        assert scores["accuracy"] == 100 == scores["entity_f1"] and "macro_f1" in scores

    @pytest.mark.full
    def test_command(self, classifier: Run, tagger: Run) -> None:
        lines = command("predict", classifier.folder, "a great film", "a dull film").splitlines()
        assert [line.split("\t")[0] for line in lines] == ["for", "against"]
        said = json.loads(command("predict", classifier.folder, "--json", stdin="a poor film\n"))
        assert said["label"] == "against" and said["labels"].keys() == {"for", "against"}
        assert command("predict", tagger.folder, "play rock") == "play/O rock/B-genre\n"
        assert command("predict", classifier.folder, stdin="") == ""

    def test_a_file_of_records(self, classifier: Run, tmp_path: Path) -> None:
        records = [{"id": f"r{number}", "review": f"a {word} film"} for number, word in enumerate(WORDS)]
        (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        line = ("predict", classifier.folder, "--input", tmp_path / "in.jsonl", "--field", "review")
        said = [json.loads(one) for one in command(*line).splitlines()]
        assert [(one["id"], one["label"]) for one in said] == list(
            zip(("r0", "r1", "r2", "r3"), ("for", "for", "against", "against"), strict=True)
        )
        command(*line, "--output", tmp_path / "out.jsonl")
        assert [json.loads(one) for one in (tmp_path / "out.jsonl").read_text().splitlines()] == said
        assert "reads at most 2 texts" in refused(*line, "--field", "b", "--field", "c")

    def test_what_cannot_be_read(self, classifier: Run) -> None:
        with pytest.raises(UsageError, match="this model reads text; pass a mapping from field to text, got 3"):
            classifier.predict([3])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="this model reads text"):
            classifier.predict({"question": "who"})

    def test_a_model_that_writes_predicts_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("a b c\nb c a\n")
        source = base(tmp_path, "language_model", {"type": "causal_lm", "join": False}, {"type": "text", "files": "t"})
        source["model"]["type"] = "decoder"
        source["data"]["train"]["files"] = str(tmp_path / "text")
        source["train"] = source["train"] | {"steps": 1, "metrics": ["bits_per_character", "perplexity"]}
        run = train(source, out=tmp_path / "run", progress=False)
        with pytest.raises(UsageError, match="a model trained with causal_lm makes no predictions"):
            run.predict("a")
        scores = run.evaluate("valid")
        # 2 texts of 5 characters, 4 targets each: three words and the end
        assert scores["bits_per_character"] == pytest.approx(scores["loss"] * 8 / 10 / np.log(2))
        assert "makes no predictions" in refused("predict", run.folder, "a")


class TestEmbed:
    def test_the_mean_of_the_hidden_states(self, classifier: Run) -> None:
        texts = ["a great film", "film", "a dull a dull a"]
        vectors = classifier.embed(texts)
        assert vectors.shape == (3, 16) and vectors.dtype == torch.float32
        for text, vector in zip(texts, vectors, strict=True):
            ids = torch.tensor(classifier.read([text]))
            hidden = classifier.model(input_ids=ids).hidden[0].detach()
            expected = torch.nn.functional.normalize(hidden.mean(0), dim=0)
            torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(classifier.embed(text, "first", normalize=False)[0], hidden[0])
            torch.testing.assert_close(classifier.embed([text], pooling="last", normalize=False)[0], hidden[-1])
        torch.testing.assert_close(classifier.embed(texts, batch_size=1), vectors, rtol=1e-4, atol=1e-5)
        assert classifier.embed([]).shape == (0, 16)
        assert classifier.embed("a film " * 40).shape == (1, 16)

    def test_wrong_options(self, classifier: Run) -> None:
        with pytest.raises(UsageError, match=r"pooling must be mean, first, .* got 'least'"):
            classifier.embed("a", pooling="least")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="batch_size must be at least 1"):
            classifier.embed("a", batch_size=0)

    def test_command(self, classifier: Run, tmp_path: Path) -> None:
        (tmp_path / "texts").write_text("a great film\nfilm\n")
        rows = [json.loads(line) for line in command("embed", classifier.folder, tmp_path / "texts").splitlines()]
        expected = classifier.embed(["a great film", "film"])
        np.testing.assert_allclose(rows, expected, rtol=1e-5)
        command("embed", classifier.folder, tmp_path / "texts", "--out", tmp_path / "v.npy", "--no-normalize")
        array = np.load(tmp_path / "v.npy")
        np.testing.assert_allclose(array, classifier.embed(["a great film", "film"], normalize=False), rtol=1e-5)
        command("embed", classifier.folder, "-", "--out", tmp_path / "v.jsonl", stdin="film\n")
        assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 1
        assert "contains no text" in refused("embed", classifier.folder, "-", stdin="")


class TestInitFrom:
    @pytest.mark.full
    def test_another_head_is_new(self, classifier: Run, tmp_path: Path) -> None:
        head = {"type": "masked_lm", "activation": "tanh"}  # dense is as large as the classifier's
        source = base(tmp_path, head, "masked_lm", {"type": "text", "files": str(tmp_path / "text")})
        (tmp_path / "text").write_text("a great film\na poor film\n")
        source["data"]["tokenizer"] = {"type": "file", "path": str(classifier.folder / "tokenizer.json")}
        source["train"] = source["train"] | {"steps": 1, "init_from": str(classifier.folder)}
        source["train"]["schedule"] = {"type": "constant", "lr": 1e-12}
        with pytest.raises(RunError, match=r"head\.dense\.weight \(the run's head has another type\)"):
            train(source, out=tmp_path / "run", progress=False)
        allowed = {"run": str(classifier.folder), "new": ["head.*"], "unused": ["head.*"]}
        source["train"]["init_from"] = allowed
        run = train(source, out=tmp_path / "run", progress=False)
        said = (run.folder / "train.log").read_text()
        assert "new: head.dense.weight" in said and "4 not used" in said
        before, after = classifier.model.state_dict(), run.model.state_dict()
        assert torch.equal(before["encoder.embedding.tokens.weight"], after["encoder.embedding.tokens.weight"])
        assert not torch.equal(before["head.dense.weight"], after["head.dense.weight"])
        fill = run.predict("a <mask> film")[0]
        hidden = run.attention("a <mask> film").maps[0].queries  # a mask is read as one, as in predict
        assert "<mask>" in hidden and "<unk>" not in hidden
        assert len(fill["fills"][0]) == 5 and fill["filled"].startswith("a ")
