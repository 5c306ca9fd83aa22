"""Parts that size themselves by their layer's number are counted as they are built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch import Tensor, nn

from tfkit.cli.main import WRONG, main
from tfkit.components.feedforward.dense import FeedForward
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Shape
from tfkit.core.context import Context
from tfkit.core.errors import UsageError
from tfkit.core.options import Width
from tfkit.core.registry import register
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count, count_parameters, split_by_size
from tfkit.reports.show import as_data

from ..recipe.small import small

RULES: dict[str, tuple[Callable[[Shape], int], list[tuple[str, int]]]] = {  # widths, and rows of the table
    "deeper_wider": (lambda shape: 4 * (1 + shape.layer), [(str(number), 1) for number in range(5)]),
    "every_other": (lambda shape: 4 + 4 * (shape.layer % 2), [("0, 2, 4", 3), ("1, 3", 2)]),
    "narrow_end": (lambda shape: 8 if shape.layer < shape.depth - 1 else 4, [("0-3", 4), ("4", 1)]),
    "all_alike": (lambda shape: 4 + 0 * shape.layer, [("0-4", 5)]),
}


@pytest.fixture(autouse=True, params=RULES)
def rule(request) -> str:
    """A feed-forward part, `by_number`, whose inner width follows a rule."""
    width, _ = RULES[request.param]

    @register("feedforward", "by_number")
    class ByNumber(FeedForward):
        class Config(FeedForward.Config):
            factor: Width = 1

        def __init__(self, config: Config, shape: Shape) -> None:
            super().__init__(config, shape)
            self.up = nn.Linear(shape.d_model, config.factor * width(shape))
            self.down = nn.Linear(config.factor * width(shape), shape.d_model)

        def forward(self, x: Tensor, context: Context) -> Tensor:
            out: Tensor = self.down(self.up(x).relu())
            return out

    return str(request.param)


def recipe(layer: dict[str, Any] | None = None, **model: Any) -> Recipe:
    return load_recipe(small({"feedforward": "by_number"} | (layer or {}), **({"num_layers": 5} | model)))


def built(blueprint: Blueprint) -> int:
    return sum(weight.numel() for weight in build_model(blueprint, device="meta").parameters())


KINDS = {"layers": {"plain": {}, "wide": {"feedforward": {"factor": 3}}}}


def test_parameters_are_those_of_the_built_model():
    for made in (
        recipe(),
        recipe(**KINDS, pattern=["plain", "wide*2"]),
        recipe(type="encoder_decoder", encoder={"num_layers": 2}),
        recipe({"shared": True}),
        recipe({"shared": True}, **KINDS, pattern=["plain*2", "wide", "plain*2"]),
        recipe({"feedforward": {"type": "by_number", "shared": True}}),
    ):
        blueprint = made.blueprint()
        assert count_parameters(blueprint) == count(blueprint, 6).total.parameters == built(blueprint)


def test_products_and_rows_are_those_of_each_layer(rule):
    blueprint, plain = recipe().blueprint(), recipe({"feedforward": "none"}).blueprint()
    layers = [layer.feedforward.up.out_features for layer in build_model(blueprint, device="meta").decoder.layers]
    more = count(blueprint, 6).total.flops_per_token - count(plain, 6).total.flops_per_token
    assert more == sum(2 * 2 * 8 * inner for inner in layers)
    rows = [row for row in as_data(blueprint, count(blueprint, 6))["rows"] if row["name"] == "layer"]
    assert [(row["layers"], row["times"]) for row in rows] == RULES[rule][1]
    assert split_by_size(plain) == plain


def test_hundreds_of_layers(tmp_path: Path, rule):
    deep = recipe(num_layers=300)
    (tmp_path / "mine.yaml").write_text(deep.resolved())
    result = CliRunner().invoke(main, ["check", str(tmp_path / "mine.yaml")])
    if rule == "all_alike":
        one, two = (count_parameters(recipe(num_layers=number).blueprint()) for number in (1, 2))
        assert count_parameters(deep.blueprint()) == one + 299 * (two - one) and result.exit_code == 0
    else:
        with pytest.raises(UsageError, match="a part has a different size in each layer"):
            count_parameters(deep.blueprint())
        assert result.exit_code == WRONG
        assert "mine.yaml: a part has a different size in each layer, which is supported" in result.stderr


def test_diff_counts_both(tmp_path: Path):
    made = [recipe(num_layers=layers) for layers in (2, 5)]
    files = [tmp_path / f"{number}.yaml" for number in range(2)]
    for file, one in zip(files, made, strict=True):
        file.write_text(one.resolved())
    result = CliRunner().invoke(main, ["diff", *map(str, files)])
    assert result.exit_code in (0, 1), result.output
    assert all(f"{built(one.blueprint()):,}" in result.output for one in made)
