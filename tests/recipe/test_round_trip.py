"""resolved.yaml is the same model to train: its initial weights and its optimizer groups, under muP too.

The same recipes are drawn every time. For others:
TRIP_SEED=7 TRIP_BATCHES=100 pytest -m slow tests/recipe/test_round_trip.py
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tfkit.core.errors import RecipeError, UsageError
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_recipe, load_saved

from ..sampling import some
from .fuzz.drawn import drawn
from .fuzz.grown import Base, difference, drawn_base, groups, healed_base, said_sizes, with_base
from .fuzz.tree import Pairs, flow, plain

BATCH, BATCHES = 12, int(os.environ.get("TRIP_BATCHES", 24))
SEED = os.environ.get("TRIP_SEED", "0")

pytestmark = [
    pytest.mark.usefixtures("shipped_parts"),
    pytest.mark.filterwarnings("ignore::tfkit.core.errors.TfkitWarning"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


def read_again(recipe: Recipe) -> Recipe:
    """The recipe that resolved.yaml is."""
    Path("resolved.yaml").write_text(recipe.resolved(), encoding="utf-8")
    return load_recipe("resolved.yaml")


def hold(recipe: Recipe) -> Model:
    """The resolved recipe is the same model, and resolved again the same text. Return the model."""
    again, model = read_again(recipe), built(recipe)
    assert again.blueprint() == recipe.blueprint(), "another blueprint"
    found = difference(model, built(again))
    assert found is None, found
    assert yaml.safe_load(again.resolved()) == yaml.safe_load(recipe.resolved()), "another text"
    return model


def built(recipe: Recipe) -> Model:
    return build_model(recipe.blueprint(), seed=3)


def hold_refusal(tree: Pairs) -> None:
    """A base that `check` alone refuses cannot be built."""
    Path("refused.yaml").write_text(flow(tree), encoding="utf-8")
    with suppress(RecipeError):
        recipe = load_saved(Path("refused.yaml"))  # which leaves to the build what the sections ask of each other
        with pytest.raises(UsageError):
            groups(built(recipe))


def hold_base(tree: Pairs, base: Base, model: Model) -> None:
    """At the sizes of the base nothing changes by a bit."""
    own = {key: size for key, size in said_sizes(dict(tree)["model"]).items() if key in base}
    chosen = own or {"d_model": dict(dict(tree)["model"])["d_model"]}
    found = difference(model, built(load_recipe(plain(with_base(tree, chosen)))))
    assert found is None, f"at the base {found}"


def hold_grown(tree: Pairs, model: Model, random: Random) -> bool:
    """A drawn recipe with a drawn base; false where the recipe is refused. `model` is it without a base."""
    base = healed_base(tree, drawn_base(dict(tree)["model"], random), random)
    grown = with_base(tree, base, random.choice((0.5, 0.75, 1.0)))
    try:
        recipe = load_recipe(plain(grown))
    except RecipeError as error:
        if all(fault.path.startswith(("model.parametrization", "model.init")) for fault in error.faults):
            hold_refusal(grown)
        return False
    hold(recipe)
    hold_base(tree, base, model)
    return True


@pytest.mark.timeout(0)
@pytest.mark.parametrize("batch", some(range(BATCHES)))
def test_a_drawn_recipe_comes_back(batch: int) -> None:
    count = 0
    for number in range(BATCH):
        random = Random(f"{SEED}-{batch}-{number}")
        tree: Any = drawn(random)
        try:
            recipe = load_recipe(plain(tree))
        except RecipeError:
            continue
        try:
            count += hold_grown(tree, hold(recipe), random)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{flow(tree)}") from error
    assert count, "no recipe of the batch is accepted with its base"
