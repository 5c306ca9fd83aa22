"""`tfkit show` has every figure that a recipe declares."""

from __future__ import annotations

from tfkit.core.keys import RateValue, SizeValue
from tfkit.recipe.keys import LAYER, STACK
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count
from tfkit.reports.show import as_data
from tfkit.reports.table import headline


def test_the_data_has_every_declared_figure() -> None:
    blueprint = load_recipe("gpt2", overrides={"model.final_dropout": 0.25, "model.layer.shared": True}).blueprint()
    data = as_data(blueprint, count(blueprint, 8))
    figures = {name for name, key in STACK.items() if isinstance(key.kind, SizeValue | RateValue)}
    assert figures <= data["stacks"]["decoder"].keys()
    assert data["stacks"]["decoder"]["final_dropout"] == 0.25
    layer = next(row for row in data["rows"] if "layers" in row)
    assert {name for name, key in LAYER.items() if key.is_plain} <= layer.keys()
    assert layer["shared"] is True
    parts = {part["name"] for row in data["rows"] for part in row["parts"]}
    assert {"embedding", "position", "final_norm"} <= parts


def test_the_headline_names_what_is_set_and_nothing_else() -> None:
    plain = load_recipe("gpt2").blueprint()
    assert "final_dropout" not in headline(as_data(plain, count(plain, 8)))
    paired = load_recipe("transformer-base", overrides={"model.decoder.final_dropout": 0.25}).blueprint()
    line = headline(as_data(paired, count(paired, 8)))
    assert "d_model 512, " in line
    assert "layers 6 and 6, final_dropout 0.25, " in line
