"""Right recipes to begin with: those that ship, the published architectures, and small ones made from the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from tfkit.contracts.options import Sampler, Value
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.shipped import shipped_recipes
from tfkit.recipe.text.source import read

from .tree import Pairs, plain, planted

ARCHITECTURES = Path(__file__).parents[1] / "architectures"
WHOLE = (1, 2, 2, 3, 4, 4, 8, 16)
BROKEN = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
OPTIONAL = 0.2  # how often an option that has a default is said


@cache
def files() -> tuple[Path, ...]:
    """The recipe files: shipped ones and published architectures."""
    return (*shipped_recipes().values(), *sorted(ARCHITECTURES.glob("*.yaml")))


@cache
def _tree(path: Path) -> Any:
    return planted(read(path)[0].plain())


def seed(random: Random) -> Any:
    """The tree of a file, or of a small recipe made from the registry; not to be changed."""
    return _tree(random.choice(files())) if random.random() < 0.4 else healed(grown(random), 8)


def healed(tree: Pairs, rounds: int) -> Pairs:
    """The tree without what is wrong in it, as far as leaving it out helps."""
    for _ in range(rounds):
        try:
            load_recipe(plain(tree))
        except RecipeError as error:
            wrong = {fault.path.partition("[")[0] for fault in error.faults} - {"model", "model.layer"}
            if not _cut(tree, wrong):
                break
        except Exception:  # the oracle is to find it
            break
        else:
            break
    return tree


def _cut(tree: Pairs, wrong: set[str], path: str = "") -> bool:
    """Take the keys with these paths out of the tree; false where there is none of them."""
    kept = [pair for pair in tree if f"{path}{pair[0]}" not in wrong]
    found = len(kept) < len(tree)
    tree[:] = kept
    below = [_cut(value, wrong, f"{path}{key}.") for key, value in kept if isinstance(value, Pairs)]
    return found or any(below)


def grown(random: Random) -> Pairs:
    """A small recipe of parts from the registry, each with options by their types; most are right."""
    kind = random.choice(REGISTRY.names("model"))
    model = Pairs([["type", kind], ["d_model", random.choice((8, 8, 16))], ["vocab_size", 20]])
    model += [["num_layers", random.choice((1, 2, 3, 4))], ["embedding", part("embedding", random)]]
    model += [["layer", _layer(random)], ["head", part("head", random)]]
    sometimes = {"position": "position", "mask": "mask", "init": "init", "final_norm": "norm"}
    model += [[key, part(slot, random)] for key, slot in sometimes.items() if random.random() < 0.5]
    model += [["max_length", random.choice((3, 16, 16))]] if random.random() < 0.7 else []
    model += [["heads", Pairs([["more", part("head", random)]])]] if random.random() < 0.1 else []
    model += [["memory", Pairs([["d_model", 8]])]] if random.random() < 0.1 else []
    model += _kinds(random) if random.random() < 0.4 else []
    recipe = Pairs([["tfkit", 1], ["model", model]])
    if random.random() < 0.15:
        options = Drawn(random).options
        recipe += [["data", options(Data)], ["objective", part("objective", random)]]
        recipe += [["train", options(Train)], ["generate", options(Generate)]]
    return recipe


def _layer(random: Random) -> Pairs:
    layer = Pairs([["residual", part("residual", random)], ["norm", part("norm", random)]])
    mixes = ["attention", *(["mixer"] if REGISTRY.names("mixer") else [])]
    mixer = random.choice(mixes)
    layer += [[mixer, part(mixer, random)], ["feedforward", part("feedforward", random)]]
    sometimes = {"position": "position", "mask": "mask", "attention_norm": "norm", "cross_attention": "attention"}
    layer += [[key, part(slot, random)] for key, slot in sometimes.items() if random.random() < 0.15]
    layer += [["dropout", 0.1]] if random.random() < 0.3 else []
    layer += [["shared", True]] if random.random() < 0.1 else []
    layer += [["sublayers", [mixer, "feedforward", "feedforward"]]] if random.random() < 0.1 else []
    return layer


def _kinds(random: Random) -> list[Any]:
    slots = {"attention": "attention", "feedforward": "feedforward", "mask": "mask", "position": "position"}
    kinds = Pairs()
    for name in ("local", "global", "first")[: random.choice((1, 2, 3))]:
        changed = random.sample(sorted(slots), random.choice((0, 1, 2)))
        kinds.append([name, Pairs([key, part(slots[key], random)] for key in changed)])
    names = [name for name, _ in kinds]
    pattern: list[Any] = [random.choice(names) for _ in range(random.choice((1, 2, 3)))]
    if random.random() < 0.3:
        pattern.append([random.choice(names)])
    return [["layers", kinds], ["pattern", pattern]]


def part(slot: str, random: Random) -> Any:
    """Any part of the slot with some of its options; a bare name where it has none."""
    return Drawn(random).part(slot) if REGISTRY.names(slot) else "none"


class Drawn(Sampler):
    """Random values by type; now and then also of an option that has a default."""

    named: Mapping[str, Any] = {}
    plain: Mapping[type, Sequence[Any]] = {bool: (False, True), int: WHOLE, float: BROKEN}

    def __init__(self, random: Random) -> None:
        self.random = random

    def choose(self, values: Sequence[Value]) -> Value:
        return self.random.choice(values)

    def options(self, model: type[BaseModel], given: Iterable[str] = ()) -> Any:
        fields = model.model_fields.items()
        said = [(name, field) for name, field in fields if field.is_required() or self.random.random() < OPTIONAL]
        return Pairs([name, self.option(name, field)] for name, field in said)

    def part(self, slot: str) -> Any:
        name = self.random.choice(REGISTRY.names(slot))
        options = self.options(REGISTRY.get(slot, name).Config)
        return Pairs([["type", name], *options]) if options or self.random.random() < 0.5 else name

    def text(self, name: str, is_path: bool = False) -> str:
        return self.random.choice(("text", "a.txt", "output"))
