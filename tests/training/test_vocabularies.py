"""A tokenizer for each side of a pair: what reads and what writes, in a run's folder, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small import PAIR, small, trained
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import Run, evaluate, load_run
from tfkit.training.objective import Seq2Seq

from ..sampling import looped

PAIRS = [("a cat", "eine Katze"), ("a dog", "ein Hund"), ("two cats", "zwei Katzen"), ("a cow", "eine Kuh")]
SIDES = {"source": "character", "target": "word"}
EXTENDED = "extends: translate-numbers\nmodel: {embedding: {shared: false}}\n"


def recipe(folder: Path, **changed: Any) -> Recipe:
    """A translator of four pairs, their texts in `folder`."""
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    corpus = {"type": "parallel_tsv", "file": str(folder / "pairs.tsv")}
    data = {"data.tokenizer": SIDES, "data.train": corpus, "data.valid": corpus}
    values = {**PAIR, "model.embedding.shared": False, **data, "train.samples": 1, "generate.max_new_tokens": 6}
    return small(folder, {**values, **changed})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pair")
    return trained(recipe(folder), folder / "run")


def test_each_side_has_its_own_tokens(run: Run) -> None:
    blueprint = run.blueprint
    assert blueprint.encoder is not None and blueprint.decoder is not None
    assert (blueprint.encoder.vocab_size, blueprint.decoder.vocab_size) == run.tokenizer.sizes
    assert run.source_tokenizer.decode(run.source_tokenizer.encode("a cow")) == "a cow"
    assert not run.tokenizer.unknown("Katze") and run.source_tokenizer.unknown("Katze") == ["K", "z", "e"]
    assert run.read(["a"]) == [[run.source_tokenizer.id("a"), run.source_tokenizer.special_ids["end"]]]


def test_a_run_opened_again_writes_the_same(run: Run) -> None:
    there = load_run(run.folder)
    assert not (run.folder / "tokenizer.json").exists()
    assert there.tokenizer.sizes == run.tokenizer.sizes
    assert there.generate("a cat") == run.generate("a cat")
    assert evaluate(there) == evaluate(run.folder)
    assert torch.equal(there.embed("a cat"), run.embed("a cat"))
    copy = pickle.loads(pickle.dumps(there.tokenizer))
    assert (copy.sizes, copy.source.encode("dog")) == (there.tokenizer.sizes, there.source_tokenizer.encode("dog"))


def test_rules_are_about_the_tokens_that_are_written(run: Run) -> None:
    (written,) = run.candidates("a cat", logits=[{"type": "forced", "tokens": ["Hund"]}])[0]
    assert written.text.startswith("Hund")
    with pytest.raises(UsageError, match="'c' is not in the vocabulary"):
        run.generate("a cat", logits=[{"type": "banned", "tokens": ["c"]}])
    pytest.importorskip("llguidance")
    assert run.generate("a cat", logits=[{"type": "choices", "choices": ["zwei Katzen"]}]) == ["zwei Katzen"]


@pytest.mark.full
def test_the_files_are_checked(tmp_path: Path) -> None:
    folder = trained(recipe(tmp_path), tmp_path / "run").folder
    file = folder / "tokenizer.source.json"
    text = file.read_text()
    file.write_text(text.replace('"a"', '"x"', 1))
    with pytest.raises(RunError, match=r"tokenizer\.source\.json"):
        load_run(folder)
    file.unlink()
    with pytest.raises(RunError, match=r"tokenizer\.source\.json: is missing"):
        load_run(folder)


@pytest.mark.full
def test_a_run_may_start_from_another_with_the_same_tokens(run: Run, tmp_path: Path) -> None:
    files = {side: {"type": "file", "path": str(run.folder / f"tokenizer.{side}.json")} for side in SIDES}
    took = {"data.tokenizer": files, "train.init_from": str(run.folder)}
    assert trained(recipe(tmp_path, **took), tmp_path / "again").tokenizer.sizes == run.tokenizer.sizes
    other = {**took, "data.tokenizer": {**files, "source": {"type": "character", "special_tokens": {"mask": "<mask>"}}}}
    with pytest.raises(RunError, match=r"has another tokenizer.*tokenizer\.source\.json|tensors"):
        trained(recipe(tmp_path, **other), tmp_path / "other")


@pytest.mark.full
def test_sources_are_padded_with_a_token_of_theirs(tmp_path: Path) -> None:
    tokenizers = {"source": "character", "target": {"type": "word", "special_tokens": {"unknown": "<u>", "pad": None}}}
    swapped = {"source": tokenizers["target"], "target": {"type": "character"}}
    for sides in (tokenizers, swapped):
        small = recipe(tmp_path, **{"data.tokenizer": sides, "train.samples": 0})
        trained(small, tmp_path / str(sides is swapped))


def test_a_source_without_the_token_that_it_needs(tmp_path: Path) -> None:
    source = {"type": "character", "special_tokens": {"start": None}}
    trained(recipe(tmp_path, **{"data.tokenizer.source": source}), tmp_path / "run")
    with pytest.raises(RecipeError) as caught:
        recipe(tmp_path, **{"data.tokenizer.source": source, "objective.source_start": True})
    (fault,) = caught.value.faults
    assert fault.path == "data.tokenizer.source.special_tokens.start"
    assert "'seq2seq' requires a special token for start" in fault.message


TWO = "data: {tokenizer: {source: character, target: word}}\n"
BOUNDED = "encoder: {vocab_size: 300}, decoder: {vocab_size: 300}"
FAULTS = [
    (f"extends: translate-numbers\n{TWO}", "model.embedding.shared: one token table cannot serve the two vocabularies"),
    (f"extends: names\n{TWO}", "{file}:2:8: data.tokenizer: objective 'causal_lm' (see"),
    (
        EXTENDED + TWO.replace("character", "charcter"),
        "{file}:3:28: data.tokenizer.source: unknown tokenizer 'charcter'. Did you mean 'character'?",
    ),
    (EXTENDED + TWO.replace(", target: word", ""), "{file}:3:19: data.tokenizer: needs the option 'target'"),
    (
        EXTENDED + TWO.replace("word", "word, taget: word"),
        "{file}:3:53: data.tokenizer.taget: unknown option. Did you mean 'target'?",
    ),
    (
        EXTENDED + TWO.replace("character", "none"),
        "{file}:3:28: data.tokenizer.source: expected the name of a tokenizer",
    ),
    (
        f"extends: translate-numbers\nmodel: {{embedding: {{shared: false}}, {BOUNDED}}}\n"
        "data: {tokenizer: {source: {type: bpe, vocab_size: 900}, target: {type: bpe, vocab_size: 300}}}\n",
        "{file}:3:52: data.tokenizer.source.vocab_size: the tokenizer may have 900 tokens, but vocab_size "
        "is 300 (see {file}:2:59)",
    ),
]


@looped(("text", "fault"), FAULTS)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(file)
    assert any(fault.format(file=file) in str(one) for one in caught.value.faults), caught.value.faults


def test_layers_replace_one_by_two_and_two_by_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(EXTENDED + "data: {tokenizer: {source: character, target: {type: bpe, vocab_size: 300}}}\n")
    assert [*load_recipe(file).data.tokenizers()] == ["data.tokenizer.source", "data.tokenizer.target"]  # type: ignore[union-attr]
    one = load_recipe(file, sets="data.tokenizer=word")
    assert one.data is not None and [*one.data.tokenizers()] == ["data.tokenizer"]
    longer = load_recipe(file, sets="data.tokenizer.target.vocab_size=400")
    assert longer.data is not None and longer.data.target_tokenizer.vocabulary_bound == 400
    kept = load_recipe(file).resolved((50, 300))
    (tmp_path / "resolved.yaml").write_text(kept)
    assert load_recipe(tmp_path / "resolved.yaml").blueprint() == load_recipe(file).blueprint((50, 300))


def test_a_path_is_beside_the_file_that_says_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(EXTENDED + "data: {tokenizer: {source: {type: file, path: t.json}, target: word}}\n")
    (fault,) = [one for one in load_recipe(file).missing_files() if "tokenizer" in one.path]
    assert fault.path == "data.tokenizer.source.path" and f"no such file: {tmp_path / 't.json'}" in fault.message


def test_only_an_objective_of_pairs_has_two(tmp_path: Path) -> None:
    assert "two_vocabularies" in Seq2Seq.capabilities
    with pytest.raises(RecipeError, match=r"'denoising' .* uses a single tokenizer"):
        recipe(tmp_path, objective="denoising")
