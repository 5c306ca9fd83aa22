"""Recipes as text: what is written reads as the data that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfkit.core.errors import RecipeError
from tfkit.recipe.overlays import edited, written
from tfkit.recipe.shipped import shipped_recipes
from tfkit.recipe.text.source import parse

from ..sampling import each

DATA: dict[str, Any] = {
    "tfkit": 1,
    "model": {"layer": {"norm": "rms_norm", "attention": {"type": "multi_head", "num_heads": 4}}, "head": None},
    "variants": {"it's: odd": {"model.d_model": [1, 2.5, True, "none", "1e3", "ü # x", ""]}, "empty": {}},
    "data": {"train": {"files": [f"{'long' * 20}{number}.txt" for number in range(3)], "type": "text"}},
}


def read(text: str) -> Any:
    root, faults = parse(text, "<text>")
    assert not faults
    return root.plain()


def test_what_is_written_reads_the_same() -> None:
    assert read(written(DATA)) == DATA
    assert written({}) == "{}\n"


def test_every_shipped_recipe_can_be_written() -> None:
    def check(name: str, path: Path) -> None:
        data = read(path.read_text("utf-8"))
        assert read(written(data)) == data

    each(shipped_recipes().items(), check)


def test_a_value_is_laid_in_by_the_merge_rule() -> None:
    text = written(DATA)
    assert read(edited(text, "model.layer.attention.num_heads", 8))["model"]["layer"]["attention"] == {
        "type": "multi_head",
        "num_heads": 8,
    }
    assert read(edited(text, "model.layer.attention", {"type": "linear"}))["model"]["layer"]["attention"] == {
        "type": "linear"
    }


@pytest.mark.parametrize("key", ["extends", "variants.wide", "model..d_model"])
def test_a_key_that_cannot_be_laid(key: str) -> None:
    with pytest.raises(RecipeError):
        edited(written(DATA), key, "x")
