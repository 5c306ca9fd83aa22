"""A recipe is read once, in one direction: what load_recipe enters has a budget, and no text is parsed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.work import entered
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import load_recipe

FUNCTIONS, FILES = 375, 48  # lower them with the code; a part of the recipe that checks more may raise them by itself


def test_loading_enters_few_functions_of_few_files() -> None:
    load_recipe("translate-numbers")  # imports, and what is kept for each class
    functions = entered(lambda: load_recipe("translate-numbers"))  # comprehensions too
    assert len(functions) <= FUNCTIONS, sorted(functions)
    assert len({file for file, *_ in functions}) <= FILES


@pytest.mark.parametrize("name", ["translate-numbers", "positions", "mine"])
def test_no_text_is_parsed_twice(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file, nor its bases, nor what --set and --variant say."""
    mine = tmp_path / "mine.yaml"
    variants = "variants: {wide: {model.d_model: 96}, deep: {model.decoder.num_layers: [1, 3]}}"
    mine.write_text(f"tfkit: 1\nextends: translate-numbers\n{variants}\n", encoding="utf-8")
    parsed: list[str] = []
    parse = yaml.parse

    def counted(text: str, **how: Any) -> Any:
        parsed.append(text)
        return parse(text, **how)

    monkeypatch.setattr(yaml, "parse", counted)
    if name == "mine":
        load_recipe(mine, variant=["wide", "deep=3"], sets=["train.seed=7", "train.steps=11"])
        assert len(parsed) == 5  # two files, one value of an axis, two of --set
    else:
        load_recipe(name)
        assert parsed[0] == shipped_recipes()[name].read_text(encoding="utf-8")
    assert len(parsed) == len(set(parsed))
