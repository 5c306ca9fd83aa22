"""Parts that size themselves by their layer's number are counted as they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from torch import Tensor, nn

from tfkit.cli.main import WRONG, main
from tfkit.components.feedforward.dense import FeedForward
from tfkit.core.blueprint import Blueprint
from tfkit.core.context import Context
from tfkit.core.errors import UsageError
from tfkit.core.options import Width
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count, count_parameters
from tfkit.reports.numbered import split_by_size
from tfkit.reports.show import as_data

WIDTHS: dict[str, Callable[[Shape], int]] = {
    "deeper_wider": lambda shape: 4 * (1 + shape.layer),
    "every_other": lambda shape: 4 + 4 * (shape.layer % 2),
    "narrow_end": lambda shape: 8 if shape.layer < shape.depth - 1 else 4,
    "all_alike": lambda shape: 4 + 0 * shape.layer,
}


@pytest.fixture(autouse=True, params=WIDTHS)
def rule(request) -> str:
    """A feed-forward part, `by_number`, whose inner width follows a rule."""
    width = WIDTHS[request.param]

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
    parts = {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 2}, "feedforward": "by_number"}
    keys = {"type": "decoder", "d_model": 8, "vocab_size": 20, "num_layers": 5, "embedding": "tokens"}
    return load_recipe(
        {"tfkit": 1, "model": {**keys, "layer": parts | (layer or {}), "head": "language_model", **model}}
    )


def built(blueprint: Blueprint) -> int:
    return sum(weight.numel() for weight in build_model(blueprint, device="meta").parameters())


KINDS = {"layers": {"plain": {}, "wide": {"feedforward": {"factor": 3}}}}
MODELS = {
    "one kind": lambda: recipe(),
    "two kinds": lambda: recipe(**KINDS, pattern=["plain", "wide*2"]),
    "two stacks": lambda: recipe(type="encoder_decoder", encoder={"num_layers": 2}),
    "a shared layer": lambda: recipe({"shared": True}),
    "shared by entry": lambda: recipe({"shared": True}, **KINDS, pattern=["plain*2", "wide", "plain*2"]),
    "one sublayer shared": lambda: recipe({"feedforward": {"type": "by_number", "shared": True}}),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_built_model(name):
    blueprint = MODELS[name]().blueprint()
    assert count_parameters(blueprint) == built(blueprint)
    assert count(blueprint, 6).total.parameters == built(blueprint)


def test_products_are_counted_layer_by_layer():
    blueprint = recipe().blueprint()
    plain = recipe({"feedforward": "none"}).blueprint()
    layers = [layer.feedforward.up.out_features for layer in build_model(blueprint, device="meta").decoder.layers]
    more = count(blueprint, 6).total.flops_per_token - count(plain, 6).total.flops_per_token
    assert more == sum(2 * 2 * 8 * inner for inner in layers)


def test_the_table_has_a_row_for_each_size(rule):
    blueprint = recipe().blueprint()
    rows = [row for row in as_data(blueprint, count(blueprint, 6))["rows"] if row["name"] == "layer"]
    assert [(row["layers"], row["times"]) for row in rows] == {
        "deeper_wider": [(str(number), 1) for number in range(5)],
        "every_other": [("0, 2, 4", 3), ("1, 3", 2)],
        "narrow_end": [("0-3", 4), ("4", 1)],
        "all_alike": [("0-4", 5)],
    }[rule]


def test_a_stack_that_nobody_numbers_is_left_as_it_is():
    blueprint = recipe({"feedforward": {"type": "mlp", "d_ff": 4}}).blueprint()
    assert split_by_size(blueprint) == blueprint


def test_hundreds_of_layers(rule):
    blueprint = recipe(num_layers=300).blueprint()
    if rule == "all_alike":
        one = count_parameters(recipe(num_layers=1).blueprint())
        two = count_parameters(recipe(num_layers=2).blueprint())
        assert count_parameters(blueprint) == one + 299 * (two - one)
    else:
        with pytest.raises(UsageError, match="a part has a different size in each layer"):
            count_parameters(blueprint)


def test_check_says_so_in_a_sentence(tmp_path, monkeypatch, rule):
    monkeypatch.chdir(tmp_path)
    text = "{tfkit: 1, model: {type: decoder, d_model: 8, vocab_size: 20, num_layers: 300, embedding: tokens, "
    text += "layer: {norm: layer_norm, feedforward: by_number}, head: language_model}}"
    (tmp_path / "mine.yaml").write_text(text)
    result = CliRunner().invoke(main, ["check", "mine.yaml"])
    assert result.exit_code == (0 if rule == "all_alike" else WRONG)
    if rule != "all_alike":
        assert result.stderr.startswith(
            "tfkit: mine.yaml: a part has a different size in each layer, which is supported"
        )


def test_diff_counts_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, layers in (("few", 2), ("more", 5)):
        (tmp_path / f"{name}.yaml").write_text(recipe(num_layers=layers).resolved())
    result = CliRunner().invoke(main, ["diff", "few.yaml", "more.yaml"])
    assert result.exit_code in (0, 1), result.output
    for layers in (2, 5):
        assert f"{built(recipe(num_layers=layers).blueprint()):,}" in result.output
