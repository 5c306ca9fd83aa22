"""Right recipes to begin with: those that ship, the published architectures, and small ones made from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
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
        recipe += [["data", _options(Data, random)], ["objective", part("objective", random)]]
        recipe += [["train", _options(Train, random)], ["generate", _options(Generate, random)]]
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
    names = REGISTRY.names(slot)
    if not names:
        return "none"
    name = random.choice(names)
    options = _options(REGISTRY.get(slot, name).Config, random)
    return Pairs([["type", name], *options]) if options or random.random() < 0.5 else name


def _options(model: type[BaseModel], random: Random) -> Pairs:
    said = [
        (name, field) for name, field in model.model_fields.items() if field.is_required() or random.random() < OPTIONAL
    ]
    return Pairs([name, option(field, random)] for name, field in said)


def option(field: FieldInfo, random: Random) -> Any:
    """A value of the option's type."""
    marks = [*field.metadata, *_metadata_in(field.annotation)]
    slots = [mark.slot for mark in marks if isinstance(mark, Slot)]
    kinds = _kinds_of(field.annotation)
    if slots:
        chosen = None if type(None) in kinds and random.random() < 0.2 else part(slots[0], random)
        return [chosen] if tuple in kinds else chosen
    return _value(random.choice(kinds), random)


def _metadata_in(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for argument in get_args(annotation):
        yield from _metadata_in(argument)


def _kinds_of(annotation: Any) -> list[Any]:
    """The members of a union, the words of a Literal, the class of anything else."""
    origin, members = getattr(annotation, "__origin__", None), get_args(annotation)
    if origin is Literal:
        return list(members)
    if origin is tuple:
        return [tuple]
    if isinstance(annotation, type) or not members:
        return [annotation]
    if hasattr(annotation, "__metadata__"):
        return _kinds_of(members[0])
    return [kind for member in members for kind in _kinds_of(member)]


def _value(kind: Any, random: Random) -> Any:
    if not isinstance(kind, type):
        return kind
    if kind is bool:
        return random.random() < 0.5
    if issubclass(kind, BaseModel):
        return _options(kind, random)
    choices: dict[type, tuple[Any, ...]] = {int: WHOLE, float: BROKEN, str: ("text", "a.txt", "output")}
    choices[tuple] = ([], ["output"], [0.9, 0.98])
    return random.choice(choices.get(kind, (None,)))
