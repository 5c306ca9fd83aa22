"""Whole recipes by chance: what `check` accepts trains, or is refused for what lies in its data, by file and line.

The same recipes come every time. Others: WHOLE_SEED=7 WHOLE_RECIPES=5000 pytest -m slow
tests/training/test_whole_recipes.py
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import load_recipe
from tfkit.recipe.rules import pairs

from .whole.draws import base, put, whole
from .whole.material import write
from .whole.oracle import outcome

FEW = 12
MANY = int(os.environ.get("WHOLE_RECIPES", 1_000))
SEED = int(os.environ.get("WHOLE_SEED", 0))
ENTITIES = {"type": "tagged_text", "file": "text.txt", "tags": "tags.txt"}
NUMBERS = {"type": "labelled_text", "file": "numbered.txt"}

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::tfkit.core.errors.TfkitWarning")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpora, a tokenizer and a run."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder)
    return folder


def held(seeds: range, folder: Path) -> Counter[str]:
    """How many recipes ended in which way; raises AssertionError with the recipe that ended in none of them."""
    found: Counter[str] = Counter()
    for seed in seeds:
        recipe = whole(Random(seed))
        try:
            found[outcome(recipe, folder)] += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\nseed {seed}: {recipe}") from error
        finally:
            shutil.rmtree(folder / "out", ignore_errors=True)
    return found


def test_a_few_recipes(folder: Path) -> None:
    found = held(range(SEED, SEED + FEW), folder)
    assert found["trained"] >= FEW // 3, found


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_recipes(folder: Path) -> None:
    found = held(range(SEED, SEED + MANY), folder)
    print(dict(found))
    assert min(found[end] for end in ("trained", "refused", "data", "missing")) > 0


TABLE = [(objective, metric, why) for metric, objective, why in pairs("metric", "objective")]
ACCEPTED = [(objective, metric) for objective, metric, why in TABLE if why is None]


def measured(objective: str, metric: str, folder: Path) -> str:
    """How a recipe with that metric ends; its data are such as the metric reads."""
    recipe = base(objective, Random(0))
    put(recipe, "train.metrics", [metric])
    if metric == "grammatical":
        lano = {"type": "lano", "count": 20}
        recipe["data"] |= {"train": lano, "valid": {**lano, "split": "valid"}, "tokenizer": "word"}
    if metric in ("pearson", "spearman", "mae", "rmse", "r2", "entity_f1"):
        corpus = ENTITIES if metric == "entity_f1" else NUMBERS
        recipe["data"] |= {"train": corpus, "valid": corpus}
    return outcome(recipe, folder)


def test_every_pair_of_a_metric_and_an_objective_is_decided() -> None:
    assert len(TABLE) == len(REGISTRY.names("metric")) * len(REGISTRY.names("objective")) >= 121
    assert all(any(metric in pair for pair in ACCEPTED) for metric in REGISTRY.names("metric"))


def test_a_pair_that_is_refused_is_refused_by_check() -> None:
    for objective, metric, why in TABLE:
        recipe = base(objective, Random(0))
        put(recipe, "train.metrics", [metric])
        if why is None:
            load_recipe(recipe)
            continue
        with pytest.raises(RecipeError) as caught:
            load_recipe(recipe)
        (fault,) = caught.value.faults
        assert fault.path == "train.metrics[0]" and why in fault.message


@pytest.mark.parametrize(
    ("objective", "metric"),
    [pytest.param(*pair, marks=[pytest.mark.slow] if number % 9 else []) for number, pair in enumerate(ACCEPTED)],
)
def test_a_pair_that_is_accepted_is_measured(objective: str, metric: str, folder: Path) -> None:
    assert measured(objective, metric, folder) == "trained"
