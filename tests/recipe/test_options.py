"""Options of parts that are there by default or in a list: merged over that part, or refused where they are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

import tfkit
from tfkit.core.component import spell
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import default_metrics
from tfkit.recipe.load import load_recipe
from tfkit.recipe.rules import refusal
from tfkit.recipe.schema import language_schema

from ..sampling import looped
from .small import read_again, said, small

RECIPE: dict[str, Any] = small(vocab_size="tokenizer", num_layers=1, position="sinusoidal") | {
    "data": {"tokenizer": "character", "train": "docstrings"},
    "objective": {"type": "causal_lm", "block": 32},
    "variants": {"short": {"train.schedule.warmup": 7}},
}
RECIPE["model"]["layer"].pop("residual")


def section(name: str, *sets: str, **options: Any) -> dict[str, Any]:
    value = spell(getattr(tfkit.load_recipe(options.pop("source", RECIPE), sets=sets, **options), name))
    assert isinstance(value, dict)
    return value


def test_set_variant_override_and_file_lay_options_over_the_default_part() -> None:
    expected = section("train", "train.schedule={type: inverse_square_root, warmup: 7}")
    assert section("train") != expected
    assert section("train", "train.schedule.warmup=7") == expected
    assert section("train", "train.schedule={warmup: 7}") == expected
    assert section("train", variant="short") == expected
    assert section("train", overrides={"train.schedule.warmup": 7}) == expected
    assert section("train", source=RECIPE | {"train": {"schedule": {"warmup": 7}}}) == expected
    assert section("train", "train.optimizer.eps=1e-6")["optimizer"]["type"] == "adam"


def test_a_part_of_a_layer() -> None:
    plan = next(tfkit.load_recipe(RECIPE, sets=["model.layer.residual.branch_scale=0.5"]).blueprint().stacks())
    residual = plan.layers[0].residual
    assert residual is not None
    assert (residual.part.part_name, spell(residual)["branch_scale"]) == ("post_norm", 0.5)


@looped(
    ("setting", "expected"),
    [
        ("train.schedule.warmupp=7", "train.schedule.warmupp: unknown option. Did you mean 'warmup'?"),
        ("train.schedule.warmup=-1", "train.schedule.warmup: must be at least 1, got -1"),
        ("model.layer.residual.alpha=2", "model.layer.residual.alpha: unknown option"),
        ("data.test.limit=2", "data.test: type is missing"),  # nothing is there by default
    ],
)
def test_a_wrong_option_is_reported_where_it_is(setting: str, expected: str) -> None:
    assert said(RECIPE, sets=[setting])[0].startswith(f"--set {setting}: {expected}")


@looped(("written", "order"), [("1", 1), ("2", 2), ('"2"', 2), ("L", "L"), ("l", "L"), ("'l'", "L")])
def test_the_order_of_rouge_needs_no_quotes(written, order):
    recipe = load_recipe("translate-numbers", sets=[f"train.metrics=[{{type: rouge, of: {written}}}]"])
    assert recipe.train.metrics[0].of == order
    assert read_again(recipe).train.metrics == recipe.train.metrics
    schema = language_schema()["definitions"]["metric.rouge"]
    assert Draft7Validator(schema).is_valid({"type": "rouge", "of": yaml.safe_load(written)})


@looped("written", ["3", "true", "1.0", "ll", "none"])
def test_an_order_that_rouge_has_not_is_refused(written):
    with pytest.raises(RecipeError, match=r"train\.metrics.*of: expected 1, 2 or 'L', got"):
        load_recipe("translate-numbers", sets=[f"train.metrics=[{{type: rouge, of: {written}}}]"])


@looped("name", REGISTRY.names("objective"))
def test_the_metrics_of_an_objective_go_with_it(name):
    objective = REGISTRY.get("objective", name)
    for metric in default_metrics(objective):
        assert refusal(REGISTRY.get("metric", metric), objective) is None


def test_an_unknown_option_of_any_part_of_a_list_is_met_with_its_own_options() -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("translate-numbers", overrides={"train.metrics": ["bleu", {"type": "accuracy", "by_lenght": True}]})
    (fault,) = caught.value.faults
    assert (fault.path, fault.suggestion) == ("train.metrics[1].by_lenght", "by_length")
