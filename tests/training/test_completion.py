"""`completion`: a decoder learns the target after the source, and nothing of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.small import RECIPE, trained
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.training.objective import Completion, Item


def item(source: list[int], target: list[int]) -> Item:
    return {"source": np.asarray(source, np.int32), "target": np.asarray([1, *target, 2], np.int32)}


def objective() -> Completion:
    made: Completion = REGISTRY.get("objective", "completion").Config().build()
    return made


@pytest.fixture
def model() -> Model:
    recipe = load_recipe({**RECIPE, "model": {**RECIPE["model"], "vocab_size": 12}, "data": None, "objective": None})
    return build_model(recipe.blueprint(), seed=0).eval()


def by_hand(model: Model, items: list[Item]) -> float:
    """The log-probabilities of each target token one by one, each row alone."""
    total = 0.0
    for one in items:
        row = torch.from_numpy(np.concatenate([one["source"], one["target"]])).long()[None]
        with torch.no_grad():
            scores = model(row[:, :-1]).logits.log_softmax(-1)
        first = len(one["source"])
        for place in range(first, row.shape[1] - 1):
            total -= float(scores[0, place, row[0, place + 1]])
    return total


ITEMS = [item([5, 6, 7], [8, 9]), item([4], [3, 3, 3]), item([], [10])]


def test_the_loss_is_that_of_the_targets_alone(model: Model) -> None:
    made = objective()
    batch = made.rows.collate(ITEMS, np.random.default_rng(0))
    loss = made.loss(model, batch, training=False)
    assert loss.count == 3 + 4 + 2
    assert loss.total.item() == pytest.approx(by_hand(model, ITEMS), rel=1e-5)


def test_packed_rows_have_the_same_loss(model: Model) -> None:
    made = objective()
    batch = made.rows.collate_packed([ITEMS[:2], ITEMS[2:]], 12, np.random.default_rng(0))
    assert batch["input_ids"].shape == (2, 12)
    loss = made.loss(model, batch, training=False)
    assert loss.total.item() == pytest.approx(by_hand(model, ITEMS), rel=1e-5)


def test_the_length_is_what_the_model_reads() -> None:
    made = objective()
    batch = made.rows.collate(ITEMS, np.random.default_rng(0))
    assert made.rows.lengths(ITEMS).tolist() == [6, 5, 2]
    assert batch["input_ids"].shape == (3, 6)


def recipe(**data: Any) -> Recipe:
    probe = {"type": "induction", "count": 40, "symbols": 8, "length": 5, "shortest": 3, "following": 2}
    corpora = {split: {**probe, "split": split, "count": 20} for split in ("train", "valid", "test")}
    train = {**RECIPE["train"], "metrics": ["exact_match"], "steps": 2}
    whole = {**RECIPE, "objective": "completion", "train": train, "generate": {"max_new_tokens": 4}}
    return load_recipe({**whole, "data": {"tokenizer": "word", "batch": {"size": 4}, **corpora, **data}})


@pytest.mark.full
def test_a_run_is_trained_measured_and_writes_what_comes_after_a_source(tmp_path: Path) -> None:
    run = trained(recipe(), tmp_path / "run")
    assert set(run.evaluate("test")) == {"loss", "exact_match"}
    (written,) = run.generate(["na nb nc na"])
    assert "na nb nc na" not in written
    assert not written.startswith(" ")  # the target is a text of its own, and no continuation of the source
    assert run.samples(2, "test")[0].source


def test_too_long_and_empty_examples_are_left_out(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    long = recipe(train={"type": "copying", "length": 12, "count": 30}, batch={"size": 4, "length": 10})
    with caplog.at_level("WARNING", "tfkit"):
        trained(long, tmp_path / "run")
    assert any("source and target are longer than 10 tokens" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": "docstrings"}, r"data\.train: .*completion.* reads source and target|source"),
        ({"batch": {"length": 2}}, "'completion' requires rows of at least 3 tokens"),
    ],
)
def test_what_cannot_be_trained_is_told(data: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(**data)


def test_an_encoder_does_not_write() -> None:
    with pytest.raises(RecipeError, match="completion"):
        load_recipe(
            "bert-base", overrides={"objective": "completion", "data": {"tokenizer": "word", "train": "copying"}}
        )
