"""The sizes of a ladder: of every shipped recipe that trains, each is a right model with heads of one size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.small import RECIPE
from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import UsageError
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.shipped import shipped_tasks
from tfkit.studies.arms import StudySource
from tfkit.studies.sizes import SizeRule, sizes_of

from ..sampling import some

pytestmark = pytest.mark.full


class Counted(StudySource):
    """Recipes whose corpora are not there: with 100 tokens and 3 classes."""

    def blueprint(self, recipe: Recipe) -> Blueprint:
        return recipe.labelled(3).blueprint(100 if recipe.unknown_vocab else None)


def recipe_of(folder: Path, **model: Any) -> Counted:
    """The small recipe with other keys of `model:`."""
    layer = {**RECIPE["model"]["layer"], **model.pop("layer", {})}
    data = {**RECIPE["data"], "train": {"type": "text", "files": "x.txt"}}
    file = folder / "own.yaml"
    file.write_text(yaml.safe_dump({**RECIPE, "model": {**RECIPE["model"], "layer": layer, **model}, "data": data}))
    return Counted(str(file))


@pytest.mark.parametrize("name", some(shipped_tasks()))
def test_every_recipe_that_trains_has_sizes(name: str) -> None:
    source = Counted(name)
    number = 4 if name in ("sst2", "probe") else 5  # sst2 has a single layer, the probes two heads
    sizes = sizes_of(source, (), number, 64.0)
    assert len({size.name for size in sizes}) == number
    assert all(after.parameters > before.parameters / 0.9 for before, after in pairwise(sizes))
    assert sizes[-1].values == {}
    whole = source.blueprint(source.recipe())
    for size in sizes:
        blueprint = source.blueprint(source.recipe((), size.values))
        model = build_model(blueprint, device="meta")
        inside = [p.numel() for key, p in model.named_parameters() if ".layers." in key or ".final_norm." in key]
        assert size.parameters == sum(inside)
        assert _head_sizes(blueprint) == _head_sizes(whole)
        assert _feedforward(blueprint) == pytest.approx(_feedforward(whole), rel=0.02)


def _head_sizes(blueprint: Blueprint) -> set[float]:
    """d_model / num_heads of every attention."""
    found = {(plan.d_model, layer.num_heads) for plan in blueprint.stacks() for layer in plan.layers}
    return {width / heads for width, heads in found if heads}


def _feedforward(blueprint: Blueprint) -> float:
    """d_ff / d_model of the first layer."""
    plan = next(iter(blueprint.stacks()))
    width: int = next(config.d_ff for config in plan.layers[0].parts() if hasattr(config, "d_ff"))
    return width / plan.d_model


def test_the_sizes_of_tinyshakespeare() -> None:
    """Of 4 heads and 4 layers, 64 = 4 * 4 * 4 units: targets 64, 22.6, 8, 2.8 and 1."""
    sizes = sizes_of(Counted("tinyshakespeare"), (), 5, 64.0)
    assert [size.name for size in sizes] == ["32x1", "32x2", "64x2", "96x3", "128x4"]
    assert sizes[2].values == {
        "model.d_model": 64,
        "model.num_layers": 2,
        "model.layer.attention.num_heads": 2,
        "model.layer.feedforward.d_ff": 256,
    }
    assert sizes[2].parameters == 2 * (12 * 64 * 64 + 2 * 64) + 64  # matrices and norms without biases


def test_groups_of_heads_still_divide_the_heads() -> None:
    keys = {"model.d_model": 96, "model.num_layers": 4}
    keys |= {"model.layer.attention.num_heads": 12, "model.layer.attention.num_kv_heads": 4}
    scaling = SizeRule(keys, 12)
    for heads in range(1, 13):
        values = scaling.values(heads, 2)
        assert values is not None
        own, groups = (values[f"model.layer.attention.{name}"] for name in ("num_heads", "num_kv_heads"))
        assert own == heads
        assert own % groups == 0
        assert groups <= max(1, heads // 3)


def test_a_variant_whose_kinds_have_heads_of_their_own() -> None:
    """Its pattern has two layers, so that no size has a single one."""
    sizes = sizes_of(Counted("tinyshakespeare"), ("long",), 5, 32.0)
    assert min(int(size.name.partition("x")[2]) for size in sizes) == 2


@pytest.mark.parametrize("sizes", [1, 2, 3])
def test_too_few_sizes_are_refused(sizes: int) -> None:
    with pytest.raises(
        UsageError, match=f"--sizes {sizes}: a law needs 4 sizes or more: three to fit it, one held out"
    ):
        sizes_of(Counted("tinyshakespeare"), (), sizes, 64.0)


def test_more_sizes_than_there_are_units_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"--sizes 5: only \d different sizes can be made of sst2 \(4 units of width, 1 "
    ):
        sizes_of(Counted("sst2"), (), 5, 64.0)


def test_sizes_that_no_recipe_can_have_are_told_with_why(tmp_path: Path) -> None:
    """A pattern that names four layers fits no other number of them."""
    source = recipe_of(tmp_path, d_model=16, num_layers=4, layers={"a": {}, "b": {}}, pattern=["a", "b", "b", "a"])
    with pytest.raises(UsageError, match="others are refused: model"):
        sizes_of(source, (), 5, 64.0)
