"""`train.validate`: metrics and samples at each validation, and what keeps the best weights and stops early."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.small import LINES, paired, small, trained
from tfkit.core.errors import RecipeError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import Run
from tfkit.runs.checkpoint import Checkpoints, read_progress
from tfkit.training.scoring import ValidationScores

from ..sampling import looped


def pairs(folder: Path, *sets: str, **train: Any) -> Recipe:
    """Sentences to be reversed by an encoder-decoder with rotary positions, which keeps tables between calls."""
    values = {**paired(folder, train=LINES, valid=LINES[:3]), "model.position": "rotary"}
    plain = small(folder, {**values, "generate.max_new_tokens": 6}, **{"metrics": [], "samples": 0, **train})
    return load_recipe(plain.root.plain(), sets=sets) if sets else plain


MEASURED = {"metrics": ["exact_match", "chrf"], "samples": 2, "limit": 2}


def metrics(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_what_is_measured_changes_nothing_of_the_training(strategy: str, tmp_path: Path) -> None:
    how = f"generate.strategy={strategy}"
    plain = trained(pairs(tmp_path, how, steps=4), tmp_path / "plain")
    measured = trained(pairs(tmp_path, how, steps=4, validate=MEASURED), tmp_path / "measured")
    assert (plain.folder / "model.safetensors").read_bytes() == (measured.folder / "model.safetensors").read_bytes()
    for before, after in zip(metrics(plain), metrics(measured), strict=True):
        assert before["loss"] == after["loss"]
        assert before["valid.loss"] == after["valid.loss"]
        assert {"valid.exact_match", "valid.chrf"} == after.keys() - before.keys()


def test_the_metrics_are_those_of_evaluate(tmp_path: Path) -> None:
    options = {"metrics": ["chrf", "perplexity"]}
    recipe = pairs(tmp_path, steps=3, evaluate_every=3, keep="last", validate=options, metrics=options["metrics"])
    run = trained(recipe, tmp_path / "run")
    scores = run.evaluate("valid")
    last = metrics(run)[-1]
    assert last["valid.chrf"] == pytest.approx(scores["chrf"])
    assert last["valid.perplexity"] == pytest.approx(scores["perplexity"])


def test_samples_are_told_at_each_validation(tmp_path: Path) -> None:
    run = trained(pairs(tmp_path, steps=2, validate=MEASURED), tmp_path / "run")
    log = (run.folder / "train.log").read_text()
    assert log.count("(reference: four three two one)") == 2
    assert log.count("(reference: three two)") == 2
    assert ", chrf " in log


def scripted(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let each validation measure the next of these values as `chrf` and `exact_match`."""
    left: Iterator[float] = iter(values)

    def measure(run: Run, task: Any) -> ValidationScores:
        value = next(left)
        return ValidationScores({"chrf": value, "perplexity": value})

    monkeypatch.setattr("tfkit.run.training._validation_scores", measure)


@pytest.mark.full
@pytest.mark.parametrize(("by", "best"), [("chrf", 3), ("perplexity", 2)])
def test_the_metric_says_whether_up_or_down_is_better(
    by: str, best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, 5.0, 3.0, 9.0, 4.0)
    recipe = pairs(tmp_path, steps=4, validate={"metrics": ["chrf", "perplexity"], "best": by})
    run = trained(recipe, tmp_path / "run")
    last = Checkpoints(run.folder / "checkpoints").last()
    assert last is not None
    progress = read_progress(last)
    assert (progress.best_step, progress.best_by) == (best, by)
    assert progress.scores[by] == progress.best
    assert progress.scores["loss"] == metrics(run)[best - 1]["valid.loss"]


@pytest.mark.full
def test_patience_goes_by_the_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, 5.0, 6.0, 6.0, 1.0, 9.0, 9.0)
    recipe = pairs(tmp_path, steps=6, patience=2, validate={"metrics": ["chrf"], "best": "chrf"})
    run = trained(recipe, tmp_path / "run")
    assert metrics(run)[-1]["step"] == 4


def test_the_best_weights_are_those_of_the_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = trained(pairs(tmp_path, steps=1, keep="last"), tmp_path / "one")
    scripted(monkeypatch, 5.0, 3.0, 4.0)
    recipe = pairs(tmp_path, steps=3, validate={"metrics": ["chrf"], "best": "chrf"})
    run = trained(recipe, tmp_path / "run")
    assert (run.folder / "model.safetensors").read_bytes() == (one.folder / "model.safetensors").read_bytes()


@pytest.mark.full
def test_a_run_that_goes_on_by_another_metric_begins_to_compare_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(pairs(tmp_path, steps=2), tmp_path / "run")
    scripted(monkeypatch, 0.1, 0.2)
    run = trained(
        pairs(tmp_path, steps=4, validate={"metrics": ["chrf"], "best": "chrf"}), tmp_path / "run", resume=True
    )
    last = Checkpoints(run.folder / "checkpoints").last()
    assert last is not None
    assert (read_progress(last).best, read_progress(last).best_by) == (0.2, "chrf")


@looped(
    ("validate", "message"),
    [
        ({"best": "chrf"}, "best: 'chrf' is not measured at validation; available: loss"),
        ({"metrics": ["entity_f1"]}, r"train\.validate\.metrics\[0\]"),
        ({"metrics": ["bleus"]}, "Did you mean 'bleu'"),
        ({"metric": ["bleu"]}, "Did you mean 'metrics'"),
        ({"limit": 0}, r"train\.validate\.limit: must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(validate: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        pairs(tmp_path, validate=validate)


def test_without_a_validation_set_nothing_can_be_measured(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.validate: needs data\.valid"):
        pairs(tmp_path, "data.valid=none", validate=MEASURED)
