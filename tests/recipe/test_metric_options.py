"""The metrics that a recipe lists: their options as written, and the objectives they go with."""

import pytest
import yaml
from jsonschema import Draft7Validator

from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import default_metrics
from tfkit.recipe.load import load_recipe
from tfkit.recipe.rules import refusal
from tfkit.recipe.schema import language_schema

from ..sampling import looped
from .small import read_again


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
