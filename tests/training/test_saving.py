"""`tfkit.save`: a model of a custom training loop becomes a run, or nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import tfkit
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe
from tfkit.storage import checksums

from ..sampling import looped
from .small import LINES, RECIPE, small

IDS: dict[str, Any] = {"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 20}}


def words() -> Tokenizer:
    tokenizer: Tokenizer = REGISTRY.get("tokenizer", "word").Config().build().fit(LINES)
    return tokenizer


def own_loop(folder: Path) -> tuple[tfkit.Recipe, Any, Tokenizer]:
    """A recipe, its model after a few steps of an optimizer, and the tokenizer."""
    tokenizer = words()
    recipe = small(folder, {"model.vocab_size": tokenizer.vocab_size})
    model = tfkit.build(recipe, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ids = torch.tensor([tokenizer.encode("one two three four")])
    for _ in range(3):
        loss = cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return recipe, model, tokenizer


def ids_only(**changes: Any) -> tuple[Recipe, Any]:
    recipe = tfkit.load_recipe({**IDS, "model": {**IDS["model"], **changes}})
    return recipe, tfkit.build(recipe, seed=0)


def test_it_loads_evaluates_and_writes(tmp_path: Path) -> None:
    recipe, model, tokenizer = own_loop(tmp_path)
    run = tfkit.save(model, recipe, tokenizer, tmp_path / "run")
    again = tfkit.load_run(tmp_path / "run")
    assert again.blueprint == recipe.blueprint() and again.recipe.name == recipe.name
    before, after = model.state_dict(), again.model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert again.evaluate("valid")["loss"] == run.evaluate("valid")["loss"] > 0
    assert again.generate(["one"], max_new_tokens=3) == run.generate(["one"], max_new_tokens=3)
    assert set(checksums.read_sums(tmp_path / "run") or {}) == {
        *("resolved.yaml", "recipe.yaml", "tokenizer.json", "model.safetensors", "environment.json", "evaluation.json"),
        "README.md",
    }
    with pytest.raises(RunError, match=r"contains model.safetensors and evaluation.json, but no checkpoint"):
        tfkit.train(recipe, tmp_path / "run", resume=True, progress=False)
    begun = small(tmp_path, {"train.init_from": str(tmp_path / "run"), "train.steps": 1})
    assert tfkit.train(begun, tmp_path / "begun", progress=False).blueprint.last == recipe.blueprint().last
    open_recipe = small(tmp_path)  # its vocabulary has the size of the tokenizer
    run = tfkit.save(model, open_recipe, tokenizer, tmp_path / "open")
    assert run.blueprint.last.vocab_size == tokenizer.vocab_size
    with pytest.raises(UsageError, match=r"data: requires its tokenizer: pass it to save"):
        tfkit.save(model, open_recipe, None, tmp_path / "other")


def test_without_a_tokenizer_it_works_on_ids(tmp_path: Path) -> None:
    recipe, model = ids_only()
    run = tfkit.save(model.to(torch.bfloat16), recipe, None, tmp_path / "run")
    assert run.model(torch.tensor([[1, 2]])).logits.dtype == torch.bfloat16
    with pytest.raises(RunError, match=r"this run works on ids"):
        _ = run.tokenizer


@looped(
    ("change", "message"),
    [
        ({"d_model": 16}, r"decoder.embedding.tokens.weight is \[20, 16\] \(float32\), but \[20, 8\] \(float32\)"),
        ({"num_layers": 2}, r"decoder.layers.1.[a-z.]+ is in the model but not in the recipe"),
        ({"head": {"type": "language_model", "tied": False}}, r"model.head.tied: False in the model, True in"),
        ({"layer": {**IDS["model"]["layer"], "residual": "pre_norm"}}, r"is in the model but not in the recipe"),
        ({"position": "none"}, r"model.position: none in the model, \{'type': 'sinusoidal'"),
    ],
)
def test_a_model_of_another_recipe_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    recipe, _ = ids_only()
    with pytest.raises(UsageError, match=f"^the model does not match the recipe: .*{message}"):
        tfkit.save(ids_only(**change)[1], recipe, None, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    recipe, model = ids_only()
    with pytest.raises(UsageError, match=r"save requires a model from tfkit.build, got a Linear"):
        tfkit.save(torch.nn.Linear(2, 2), recipe, None, tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got a DataParallel; pass its \.module"):
        tfkit.save(torch.nn.DataParallel(model), recipe, None, tmp_path / "run")
    with pytest.raises(UsageError, match=r"the model has no weights: decoder.embedding.tokens.weight is on device"):
        tfkit.save(tfkit.build(recipe, device="meta"), recipe, None, tmp_path / "run")
    with pytest.raises(UsageError, match=r"tokenizer must be a tfkit.data.tokenizer.Tokenizer, .* got a str"):
        tfkit.save(model, recipe, "tokenizer.json", tmp_path / "run")  # type: ignore[arg-type]
    small_recipe, small_model = ids_only(vocab_size=3)
    with pytest.raises(RecipeError, match=r"3 is less than the .* tokens of the tokenizer"):
        tfkit.save(small_model, small_recipe, words(), tmp_path / "run")
    with pytest.raises(UsageError, match=r"tfkit.save has no argument 'override'; did you mean 'overrides'"):
        tfkit.save(model, recipe, None, tmp_path / "run", override={})  # type: ignore[call-arg]
    assert not list(tmp_path.iterdir())


def test_labels_name_the_classes(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("good one two\nbad three four\n" * 4)
    texts = {"type": "labelled_text", "file": str(tmp_path / "train.txt")}
    head = {"type": "classifier", "num_classes": "labels"}
    recipe = tfkit.load_recipe(
        {
            "tfkit": 1,
            "model": {**RECIPE["model"], "type": "encoder", "vocab_size": 20, "head": head},
            "data": {"tokenizer": "word", "train": texts, "valid": texts},
            "objective": "classification",
        }
    )
    model = build_model(recipe.labelled(2).blueprint())
    for wrong, message in (
        ((), "num_classes is the number of labels; pass"),
        (("a", "a"), "contains duplicates: a, a"),
        ("ab", "labels must be a list of strings, got 'ab'"),
        (("a", "b", "c"), r"the model does not match the recipe: head.+ is \[2, 8\]"),
    ):
        with pytest.raises(UsageError, match=message):
            tfkit.save(model, recipe, words(), tmp_path / "run", labels=wrong)
    run = tfkit.save(model, recipe, words(), tmp_path / "run", labels=["good", "bad"])
    assert run.predict(["one two"])[0]["label"] in run.labels == ("good", "bad")
    assert 0 <= run.evaluate("valid")["accuracy"] <= 100


def test_existing_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, model = ids_only()
    run = tmp_path / "run"
    tfkit.save(model, recipe, None, run)
    before = (run / "model.safetensors").read_bytes()
    other = tfkit.build(recipe, seed=1)
    with pytest.raises(RunError, match=r"contains a tfkit run; --force replaces it"):
        tfkit.save(other, recipe, None, run)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match=r"not empty and not a tfkit run"):
        tfkit.save(other, recipe, None, foreign, force=True)
    with monkeypatch.context() as patch:
        patch.setattr("tfkit.training.saving.record_all", lambda folder: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(RunError, match=r"cannot be written"):
            tfkit.save(other, recipe, None, run, force=True)
        with pytest.raises(RunError, match=r"cannot be written"):
            tfkit.save(other, recipe, None, tmp_path / "new")
    assert (run / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "run"]
    tfkit.save(other, recipe, None, run, force=True)
    assert (run / "model.safetensors").read_bytes() != before
