"""Random recipes by the thousand. Broken ones run, or are refused with a place; drawn ones come back and learn.

The same recipes are made every time. Others: `FUZZ_SEED=7 FUZZ_MUTANTS=20000 pytest -m slow tests/recipe/test_fuzz.py`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import yaml
from click.testing import CliRunner

from tfkit.cli.main import WRONG, main
from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import RecipeError, UsageError, is_shipped
from tfkit.core.registry import REGISTRY
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_recipe, load_saved

from ..sampling import each
from .fuzz.drawn import drawn, drawn_base, sizes, with_base
from .fuzz.learning import dead
from .fuzz.mutators import HEAVY
from .fuzz.oracle import FILE, Mutant, check, difference, groups, mutant, neighbours
from .fuzz.tree import Pairs, flow, plain
from .small import read_again
from .test_errors import GOOD

MUTANTS = int(os.environ.get("FUZZ_MUTANTS", 5_000))
DRAWN = int(os.environ.get("FUZZ_DRAWN", 2_000))
SEED = os.environ.get("FUZZ_SEED", "0")
SLOTS = ("attention", "mixer", "feedforward", "norm", "residual", "position", "embedding", "head", "mask")

pytestmark = [
    pytest.mark.usefixtures("shipped_parts"),
    pytest.mark.filterwarnings("ignore::tfkit.core.errors.TfkitWarning"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with the recipes that a mutant may extend."""
    monkeypatch.chdir(tmp_path)
    neighbours()


@pytest.mark.parametrize(
    "numbers",
    [pytest.param(range(60), marks=pytest.mark.full), pytest.param(range(60, MUTANTS), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
@pytest.mark.timeout(0)
def test_mutants(numbers):
    each(numbers, lambda number: hold(mutant(Random(f"{SEED}-{number}"))))


def hold(broken: Mutant) -> bool:
    try:
        return check(broken)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{str(broken)[:20_000]}") from error


@pytest.mark.full
def test_what_is_deep_wide_or_long_costs_little():
    each(HEAVY, lambda heavy: hold(Mutant(GOOD.replace("rotary", heavy).encode())))
    assert hold(Mutant(GOOD.replace("num_layers: 4", "num_layers: 10000").encode()))


@pytest.mark.full
def test_the_command_line_says_the_same():
    def same(number: int) -> None:
        broken = mutant(Random(f"{SEED}-command-{number}"))
        if broken.mapping is not None or broken.text.startswith(b"-"):
            return
        options = [f"--set={text}" for text in broken.sets] + [f"--variant={name}" for name in broken.variants]
        accepted = hold(broken)
        result = CliRunner().invoke(main, ["check", FILE, *options])
        assert result.exception is None or isinstance(result.exception, SystemExit), broken
        if accepted and result.exit_code == WRONG:  # check reads more: the data, and the variants of a study
            recipe = broken.load()
            accepted = recipe.data is None and not recipe.leaves
        assert result.exit_code == (0 if accepted else WRONG), (result.output, broken)
        faults = [line for line in result.stderr.splitlines() if ": warning: " not in line]
        assert bool(faults) is not accepted, broken

    each(range(25), same)


def comes_back(recipe: Recipe) -> Model:
    """Return the model, which is that of the resolved text: initial weights and optimizer groups, under muP too."""
    again, model = read_again(recipe), build_model(recipe.blueprint(), seed=3)
    assert again.blueprint() == recipe.blueprint(), "another blueprint"
    assert difference(model, build_model(again.blueprint(), seed=3)) is None
    assert yaml.safe_load(again.resolved()) == yaml.safe_load(recipe.resolved()), "another text"
    return model


def comes_back_with_a_base(tree: Pairs, random: Random, model: Model) -> None:
    """With a random base it comes back or cannot be built; `model` is that without a base, as at the base's size."""
    base = drawn_base(tree, random)
    grown = with_base(tree, base, random.choice((0.5, 0.75, 1.0)))
    try:
        comes_back(load_recipe(plain(grown)))
    except RecipeError as error:
        if all(fault.path.startswith(("model.parametrization", "model.init")) for fault in error.faults):
            Path("refused.yaml").write_text(flow(grown), encoding="utf-8")
            with suppress(RecipeError), pytest.raises(UsageError):
                groups(build_model(load_saved(Path("refused.yaml")).blueprint(), seed=3))
        return
    said = dict(sizes(dict(tree)["model"]))
    if said.keys() & {"encoder.num_layers", "decoder.num_layers"}:
        said.pop("num_layers", None)  # in a base it is that of both sides
    own = {key: size for key, size in said.items() if key in base} or {"d_model": said["d_model"]}
    same = load_recipe(plain(with_base(tree, own)))
    assert difference(model, build_model(same.blueprint(), seed=3)) is None, f"at the base {own}"


def loses_rank(blueprint: Blueprint) -> bool:
    """True if tokens become alike doubly exponentially with depth: attention without a residual connection.

    Their gradients are not zero, but float64 cannot tell them from zero (Dong et al. 2021, arXiv 2103.03404).
    """
    layers = [plan.layers[kind] for plan in blueprint.stacks() for kind in plan.order]
    bare = [layer for layer in layers if layer.residual.part.part_name == "plain" and layer.norm is None]
    return sum(any(sub.config.part.part_slot == "attention" for sub in layer.sublayers) for layer in bare) > 2


def drawn_recipe(number: int) -> Recipe | None:
    """A drawn recipe, None if it is refused; it comes back, and everything learns, or there is a warning."""
    random = Random(f"{SEED}-{number}")
    tree = drawn(random)
    try:
        recipe = load_recipe(plain(tree))
    except RecipeError:
        return None
    try:
        comes_back_with_a_base(tree, random, comes_back(recipe))
        if not recipe.warnings and not loses_rank(recipe.blueprint()):
            assert not dead(recipe.blueprint())
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{flow(tree)}") from error
    return recipe


@pytest.mark.full
def test_a_few_drawn_recipes_come_back_and_learn():
    assert sum(drawn_recipe(number) is not None for number in range(40)) > 10


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_drawn_recipes_come_back_and_learn():
    met: set[tuple[str, str]] = set()
    idle: list[str] = []  # warnings of what does learn
    for recipe in filter(None, map(drawn_recipe, range(40, DRAWN))):
        blueprint = recipe.blueprint()
        ends = [end for plan in blueprint.stacks() for end in (plan.embedding, plan.final_norm)]
        parts = [*(config for plan in blueprint.stacks() for config in plan.parts()), *ends, blueprint.head]
        met |= {(config.part.part_slot, config.part.part_name) for config in parts if config is not None}
        words = " ".join(warning.message for warning in recipe.warnings)
        # texts of one token are reported for parts without weights too, an idle router may have auxiliary losses
        if words and "texts of one token" not in words and "router" not in words and not dead(blueprint, tries=4):
            idle.append(f"{words}\n{recipe.resolved()}")
    shipped = {(slot, name) for slot in SLOTS for name, part in REGISTRY.load(slot).items() if is_shipped(part)}
    assert shipped <= met  # the draw is over the whole language
    assert not idle, "\n".join(["warned of, and everything learns:", *idle])
