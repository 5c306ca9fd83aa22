"""What Python shows of a recipe, a blueprint, a model and a run: at most ten lines that say something."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfkit
from tfkit.recipe.shipped import shipped_recipes

SHIPPED = sorted(name for name, path in shipped_recipes().items() if path.parent.name != "studies")


def fits(text: str) -> bool:
    lines = text.splitlines()
    return 2 <= len(lines) <= 10 and all(len(line) <= 165 for line in lines)


@pytest.mark.parametrize("names", [SHIPPED[place::8] for place in range(8)], ids=range(8))
def test_every_recipe_and_blueprint_is_at_most_ten_lines(names: list[str]) -> None:
    for name in names:
        recipe = tfkit.load_recipe(name)
        for text in (repr(recipe), repr(recipe.blueprint())):
            assert fits(text) and name in text, text


def test_a_recipe_says_its_parts() -> None:
    recipe = tfkit.load_recipe("translate-numbers", overrides={"train.steps": 7})
    text = repr(recipe)
    for words in ("with train.steps=7", "encoder: 3 layers, d_model 128", "3 x post_norm", "attention: multi_head",
                  "cross_attention", "language_model", "training: seq2seq, 7 steps, adam"):  # fmt: skip
        assert words in text, text
    assert str(recipe) == text


def test_a_model_is_short_and_its_modules_are_torch_s() -> None:
    model = tfkit.build(tfkit.load_recipe("bert-base", overrides={"model.num_layers": 2}), device="meta")
    assert fits(repr(model))
    assert "parameters, float32 on meta" in repr(model) and "masked_lm" in repr(model)
    assert repr(model.encoder.layers[0]).count("\n") > 10  # type: ignore[union-attr,index]


def test_a_run_and_its_html(tmp_path: Path) -> None:
    run = tfkit.Run(tmp_path / "<b>\x1b[2J", tfkit.load_recipe("translate-numbers"))
    assert fits(repr(run)) and "\x1b" not in repr(run) and "training: " in repr(run)
    assert run._repr_html_().endswith("&gt;</pre>")
    run.folder.mkdir()
    (run.folder / "curves.svg").write_text("<svg onload='alert(1)'/>", encoding="utf-8")
    for html in (run._repr_html_(), run.recipe._repr_html_()):
        assert html.startswith("<pre>&lt;R") and "&gt;</pre><img" in html and "<b>" not in html and "<svg" not in html
