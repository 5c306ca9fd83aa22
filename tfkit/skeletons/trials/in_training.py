"""my_part in a small run: its recipe loads, and the model trains, is evaluated and generates."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tfkit

PARTS = Path(__file__).with_name("my_part.py")
RECIPE = """the recipe"""


@pytest.fixture
def recipe(tmp_path: Path) -> tfkit.Recipe:
    """The recipe of a small run that contains the part."""
    file = tmp_path / "small.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    return tfkit.load_recipe(file, imports=[PARTS])


def test_its_options_are_spelled_out(recipe: tfkit.Recipe) -> None:
    """The recipe loads, and `resolved` names the part."""
    assert "my_part" in recipe.resolved()


def test_it_trains_and_the_model_writes(recipe: tfkit.Recipe, tmp_path: Path) -> None:
    """Train for two steps, evaluate, and generate two texts."""
    run = tfkit.train(recipe, out=tmp_path / "run", progress=False)
    scores = run.evaluate(limit=4)
    assert all(math.isfinite(score) for score in scores.values()), scores
    assert len(run.generate(["one", "two"], max_new_tokens=4)) == 2
