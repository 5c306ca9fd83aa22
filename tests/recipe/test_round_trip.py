"""resolved.yaml is the same model to train: its initial weights and its optimizer groups, under muP too.

The same recipes are drawn every time. For others:
TRIP_SEED=7 TRIP_BATCHES=100 pytest -m slow tests/recipe/test_round_trip.py
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.skeleton import NoDraws
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.models.parametrization import growths
from tfkit.recipe.load import Recipe, load_recipe, load_saved

from ..shipped import MODELS, shipped
from .fuzz.drawn import drawn
from .fuzz.grown import Base, difference, drawn_base, groups, healed_base, said_sizes, with_base
from .fuzz.tree import Pairs, flow, plain

BATCHES = int(os.environ.get("TRIP_BATCHES", 150))
ACCEPTED, EVERY = 2, 25  # recipes of a batch; one batch of so many is quick
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
    said = said_sizes(dict(tree)["model"])
    if said.keys() & {"encoder.num_layers", "decoder.num_layers"}:
        said.pop("num_layers", None)  # in a base it is that of both sides
    own = {key: size for key, size in said.items() if key in base}
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


def comes_back(tree: Any, random: Random) -> bool:
    """Check a drawn recipe without a base and with one; false where either is refused."""
    try:
        recipe = load_recipe(plain(tree))
    except RecipeError:
        return False
    try:
        return hold_grown(tree, hold(recipe), random)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{flow(tree)}") from error


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "batch", [pytest.param(number, marks=[pytest.mark.slow] if number % EVERY else []) for number in range(BATCHES)]
)
def test_drawn_recipes_come_back(batch: int) -> None:
    count = number = 0
    while count < ACCEPTED:
        random = Random(f"{SEED}-{batch}-{number}")
        count += comes_back(drawn(random), random)
        number += 1


def grown_model(recipe: Recipe) -> Model:
    with NoDraws():
        return build_model(recipe.blueprint(), device="meta")


def scales(model: Model) -> list[tuple[Any, ...]]:
    """The base size and the factor on the initial scale of each weight."""
    return [(one.base, one.init, one.layers, one.is_table) for one in growths(model, model.blueprint)]


QUICK = ("albert-base", "opt-350m", "t5-small")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_a_shipped_model_with_a_base_of_half_its_width_comes_back_or_is_refused_by_name(name: str) -> None:
    stacks = list(shipped(name).blueprint().stacks())
    prefixes = {plan.side: f"{plan.side}." if len(stacks) > 1 else "" for plan in stacks}
    base = {f"{prefixes[plan.side]}d_model": plan.d_model // 2 for plan in stacks}
    try:
        recipe = load_recipe(name, overrides={"model.parametrization": {"type": "mup", "base": base}})
    except RecipeError as error:
        assert all(re.search(r" '[\w.]+'", fault.message) for fault in error.faults), error
        return
    again = read_again(recipe)
    assert again.blueprint() == recipe.blueprint()
    one, other = grown_model(recipe), grown_model(again)
    assert groups(one) == groups(other) and scales(one) == scales(other)
